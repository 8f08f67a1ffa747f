"""Finding a draft head or target: paths, the Hugging Face cache, and what is said when nothing is there. Always offline."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specalign.layer_ids.files import InputError, read_json_object
from specalign.layer_ids.sources import default_hub_cache, how_to_fetch, locate

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the cache or the current folder of whoever runs it."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


def add_snapshot(cache: Path, repo: str = "org/name", commit: str = COMMIT, ref: str | None = "main") -> Path:
    """A snapshot as `hf download` leaves it: a link into blobs, and a ref that names the commit."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir(exist_ok=True)
    (folder / "blobs" / f"blob-{commit}").write_text(f'{{"commit": "{commit}"}}')
    (snapshot / "config.json").symlink_to(f"../../blobs/blob-{commit}")
    if ref is not None:
        (folder / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (folder / "refs" / ref).write_text(commit)
    return snapshot


def refusal(source: str, cache: Path | None = None) -> str:
    with pytest.raises(InputError) as caught:
        locate(source, hub_cache=cache)
    message = str(caught.value)
    assert all(line.isprintable() for line in message.split("\n"))
    return message


# Paths


def test_a_config_file_is_taken_as_it_is_and_its_neighbours_are_not_its_weights(tmp_path: Path) -> None:
    file = tmp_path / "eagle3.json"
    file.write_text("{}")
    found = locate(str(file))
    assert (found.config, found.folder, found.name) == (file, None, str(file))


def test_a_file_called_config_json_speaks_for_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert locate(str(tmp_path / "config.json")).folder == tmp_path


def test_a_folder_with_config_json_is_taken(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = locate(str(tmp_path))
    assert (found.config, found.folder, found.name) == (tmp_path / "config.json", tmp_path, str(tmp_path))


def test_a_home_path_is_expanded(tmp_path: Path) -> None:
    (tmp_path / "home" / "head").mkdir()
    (tmp_path / "home" / "head" / "config.json").write_text("{}")
    assert locate("~/head").folder == tmp_path / "home" / "head"


def test_a_folder_without_config_json_is_refused(tmp_path: Path) -> None:
    assert "a folder without config.json" in refusal(str(tmp_path))


@pytest.mark.parametrize(
    "source", ["/gone", "./gone", "../gone", "~/gone", "a/b/c", "a/", "gone/config.json", "a b", "--x", "ü/x"]
)
def test_what_looks_like_a_path_and_is_not_there_is_no_repository(source: str) -> None:
    message = refusal(source)
    assert "no such file or folder" in message
    assert "hf download" not in message


def test_a_bare_name_says_both_that_it_is_no_path_and_no_repository(cache: Path) -> None:
    message = refusal("draft", cache)
    assert "no such file or folder" in message
    assert str(cache) in message
    assert "ORG/NAME" in message


def test_an_empty_source_is_refused() -> None:
    assert "empty" in refusal("")


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "loop of symbolic links" in refusal("a")
    assert "loop of symbolic links" in refusal("./a/config.json")


def test_a_broken_link_is_refused_and_not_looked_up_as_a_repository(tmp_path: Path) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").symlink_to("gone")
    assert "broken link, nothing is at gone" in refusal("org/name")


def test_no_permission_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Planted, since modes do not stop root, whom CI containers run as.
    def deny(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", deny)
    assert "no permission" in refusal("/secret/head")


def test_paths_that_no_file_can_have_are_refused() -> None:
    assert "not a usable path" in refusal("a\0b")
    assert "too long" in refusal("x" * 5000)
    assert "without ~" in refusal("~no-such-user-here/x")


# The cache


def test_a_repository_id_is_found_through_refs_main(cache: Path) -> None:
    add_snapshot(cache, commit=OTHER, ref=None)
    snapshot = add_snapshot(cache)
    found = locate("org/name", hub_cache=cache)
    assert (found.config, found.folder, found.name) == (snapshot / "config.json", snapshot, "org/name")
    assert read_json_object(found.config) == {"commit": COMMIT}


def test_an_id_without_an_organization_is_found(cache: Path) -> None:
    snapshot = add_snapshot(cache, "gpt2")
    assert locate("gpt2", hub_cache=cache).folder == snapshot


def test_a_snapshot_of_links_is_a_folder_like_any_other_and_is_named_after_its_repository(cache: Path) -> None:
    snapshot = add_snapshot(cache)
    for source in (str(snapshot), str(snapshot / "config.json"), os.path.relpath(snapshot)):
        found = locate(source)
        assert found.name == "org/name"
        assert found.folder is not None
        assert found.folder.resolve() == snapshot.resolve()
        assert read_json_object(found.config) == {"commit": COMMIT}


def test_the_folder_of_a_repository_in_the_cache_is_resolved(cache: Path) -> None:
    snapshot = add_snapshot(cache)
    found = locate(str(snapshot.parent.parent))
    assert (found.folder, found.name) == (snapshot, "org/name")


def test_without_refs_main_the_only_snapshot_is_taken(cache: Path) -> None:
    snapshot = add_snapshot(cache, ref=None)
    assert locate("org/name", hub_cache=cache).folder == snapshot


def test_without_refs_main_several_snapshots_are_ambiguous(cache: Path) -> None:
    add_snapshot(cache, ref=None)
    add_snapshot(cache, commit=OTHER, ref=None)
    message = refusal("org/name", cache)
    assert COMMIT in message
    assert OTHER in message


def test_a_stale_refs_main_is_refused_and_no_other_snapshot_taken_for_it(cache: Path) -> None:
    snapshot = add_snapshot(cache)
    (snapshot.parent.parent / "refs" / "main").write_text(OTHER)
    assert f"no snapshot of the revision main; there are: {COMMIT}" in refusal("org/name", cache)


@pytest.mark.parametrize(("revision", "ref"), [("v1.0", "v1.0"), ("refs/pr/7", "refs/pr/7"), (OTHER, None)])
def test_a_revision_is_a_branch_a_tag_a_pull_request_or_a_commit(cache: Path, revision: str, ref: str | None) -> None:
    add_snapshot(cache)
    snapshot = add_snapshot(cache, commit=OTHER, ref=ref)
    found = locate(f"org/name@{revision}", hub_cache=cache)
    assert (found.folder, found.name) == (snapshot, f"org/name@{revision}")


@pytest.mark.parametrize("revision", ["v2", "v2.0", "refs/pr/7"])
def test_a_revision_that_is_not_there_is_refused_although_another_is(cache: Path, revision: str) -> None:
    add_snapshot(cache)
    message = refusal(f"org/name@{revision}", cache)
    assert f"no snapshot of the revision {revision}" in message
    assert f"hf download org/name config.json --revision {revision}" in message


@pytest.mark.parametrize("revision", ["../../x", "a/../../../x", "", "/etc/passwd", "v1;ls", "$(ls)"])
def test_a_revision_cannot_leave_the_cache_or_the_shell_line(cache: Path, revision: str) -> None:
    add_snapshot(cache)
    assert "no such file or folder" in refusal(f"org/name@{revision}", cache)


@pytest.mark.parametrize("content", ["../../../../etc", "", "a/b", "\xff", "x" * 2000])
def test_a_ref_that_holds_no_commit_is_refused(cache: Path, content: str) -> None:
    snapshot = add_snapshot(cache)
    (snapshot.parent.parent / "refs" / "main").write_text(content)
    assert "refs/main" in refusal("org/name", cache)


def test_a_snapshot_without_config_json_says_how_to_fetch_it(cache: Path) -> None:
    snapshot = add_snapshot(cache)
    (snapshot / "config.json").unlink()
    assert "hf download org/name config.json" in refusal("org/name", cache)
    assert "hf download org/name config.json" in refusal(str(snapshot), cache)


def test_a_repository_that_is_known_but_empty_says_how_to_fetch_it(cache: Path) -> None:
    (cache / "models--org--name").mkdir(parents=True)
    assert "there is none, or: hf download org/name config.json" in refusal("org/name", cache)


def test_a_path_wins_over_a_repository_id(cache: Path, tmp_path: Path) -> None:
    add_snapshot(cache)
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").write_text("{}")
    assert locate("org/name", hub_cache=cache).folder == Path("org/name")


def test_a_file_called_like_the_organization_does_not_hide_the_repository(cache: Path, tmp_path: Path) -> None:
    snapshot = add_snapshot(cache)
    (tmp_path / "org").write_text("a file, so that org/name is no path")
    assert locate("org/name", hub_cache=cache).folder == snapshot


def test_an_unknown_id_says_how_to_fetch_config_and_headers(cache: Path) -> None:
    message = refusal("org/name", cache)
    assert message.startswith("org/name: no such file or folder, and not in the Hugging Face cache")
    assert str(cache) in message
    assert message.endswith(how_to_fetch("org/name"))
    assert "hf download org/name config.json" in message
    assert "hf download org/name --include '*.safetensors.index.json'" in message
    url = "https://huggingface.co/org/name/resolve/main/model.safetensors"
    assert f"curl -L -r 0-1048575 {url} -o model.safetensors.header" in message


def test_an_unknown_id_with_a_revision_fetches_that_revision(cache: Path) -> None:
    message = refusal("org/name@v2", cache)
    assert message.count("--revision v2") == 2
    assert "/resolve/v2/" in message


# Where the cache is


def test_the_cache_is_found_by_the_precedence_of_huggingface_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_hub_cache() == tmp_path / "home" / ".cache" / "huggingface" / "hub"
    for name, value, expected in (
        ("XDG_CACHE_HOME", "/xdg", "/xdg/huggingface/hub"),
        ("HF_HOME", "~/hf", f"{tmp_path}/home/hf/hub"),
        ("HUGGINGFACE_HUB_CACHE", "/legacy", "/legacy"),
        ("HF_HUB_CACHE", "$HOME/cache", f"{tmp_path}/home/cache"),
    ):
        monkeypatch.setenv(name, value)
        assert default_hub_cache() == Path(expected)
    monkeypatch.setenv("HF_HUB_CACHE", "")
    assert default_hub_cache() == Path("/legacy")


def test_a_repository_id_is_looked_up_in_the_cache_of_the_environment(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = add_snapshot(cache)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    assert locate("org/name").folder == snapshot
