"""What `locate` says when nothing usable is there, word for word: users copy commands out of these lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specalign.layer_ids.files import InputError
from specalign.layer_ids.sources import how_to_fetch, locate

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GIVE_ID = "check the path, or give a repository id ORG/NAME"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the cache or the current folder of whoever runs it."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "other"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


def add_snapshot(cache: Path, commit: str = COMMIT, ref: str | None = "main", repo: str = "models--org--name") -> Path:
    snapshot = cache / repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    if ref is not None:
        (cache / repo / "refs").mkdir(exist_ok=True)
        (cache / repo / "refs" / ref).write_text(commit)
    return snapshot


def refusal(source: str, cache: Path | None = None) -> str:
    with pytest.raises(InputError) as caught:
        locate(source, hub_cache=cache)
    return str(caught.value)


# Paths


def test_an_empty_source_says_what_can_be_given() -> None:
    assert refusal("") == "the source is empty; give a config file, a folder or a repository id ORG/NAME"


def test_a_home_that_nobody_has_is_named() -> None:
    message = refusal("~no-such-user-here/x")
    assert message.startswith("~no-such-user-here/x: ")
    assert message.endswith("; give the path without ~")


def test_a_broken_link_is_named_with_its_target(tmp_path: Path) -> None:
    (tmp_path / "head").symlink_to("gone")
    assert refusal("head") == "head: a broken link, nothing is at gone; download or copy the file again"


def test_a_loop_of_links_is_named(tmp_path: Path) -> None:
    (tmp_path / "head").symlink_to("head")
    assert refusal("head") == "head: a loop of symbolic links; replace it by the file itself"


def test_a_path_that_may_not_be_looked_at_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # Planted, since modes do not stop root, whom CI containers run as.
    def deny(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", deny)
    says = "/secret/head: no permission to read it; change its mode, or run as a user who may"
    assert refusal("/secret/head") == says


def test_a_path_that_no_file_can_have_is_named() -> None:
    assert refusal("a\0b") == "'a\\x00b': not a usable path (embedded null byte); check the path"


def test_a_folder_without_config_says_what_to_give_or_fetch(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "head").mkdir()
    assert refusal("head") == "head: a folder without config.json; give the folder or the file that holds config.json"
    snapshot = add_snapshot(cache)
    (snapshot / "config.json").unlink()
    assert refusal(str(snapshot)) == f"{snapshot}: a folder without config.json; next: hf download org/name config.json"


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("models--org--name/snapshots/abc", "org/name"),
        ("models--gpt2/snapshots/abc", "gpt2"),
        ("models--org--name/snapshot/abc", None),
        ("models--org--name/snapshots/abc/sub", None),
        ("datasets--org--name/snapshots/abc", None),
        ("org--name/snapshots/abc", None),
        ("models--/snapshots/abc", None),
        ("models--a--b--c/snapshots/abc", None),
        ("models--org name/snapshots/abc", None),
    ],
)
def test_only_a_snapshot_of_the_cache_is_named_after_its_repository(tmp_path: Path, folder: str, name: str | None) -> None:
    head = tmp_path / folder
    head.mkdir(parents=True)
    (head / "config.json").write_text("{}")
    for source in (str(head), str(head / "config.json")):
        assert locate(source).name == (name or source)


def test_a_folder_of_snapshots_under_another_name_is_named_as_it_was_given(tmp_path: Path) -> None:
    snapshot = add_snapshot(tmp_path, repo="copied")
    found = locate(str(tmp_path / "copied"))
    assert (found.folder, found.name) == (snapshot, str(tmp_path / "copied"))


def test_the_root_is_a_folder_like_any_other() -> None:
    if Path("/config.json").exists():
        pytest.skip("this machine has a config.json in its root folder")
    assert refusal("/") == "/: a folder without config.json; give the folder or the file that holds config.json"


# Repositories


@pytest.mark.parametrize("source", ["a/b/c", "a b", "a..b", "org/na..me", "a--b", "org/a--b", "org/head.json", "org/name@"])
def test_what_no_repository_can_be_called_is_a_missing_path(cache: Path, source: str) -> None:
    assert refusal(source, cache) == f"{source}: no such file or folder; {GIVE_ID}"


def test_a_bare_name_is_looked_for_in_the_cache_too(cache: Path) -> None:
    says = f"gpt2: no such file or folder, and no such repository in the Hugging Face cache {cache}; {GIVE_ID}"
    assert refusal("gpt2", cache) == says


def test_an_unknown_repository_says_how_to_fetch_it(cache: Path, tmp_path: Path) -> None:
    says = "{id}: no such file or folder, and not in the Hugging Face cache {cache}; nothing is downloaded for you. Next:\n{commands}"
    assert refusal("org/name", cache) == says.format(id="org/name", cache=cache, commands=how_to_fetch("org/name"))
    at = says.format(id="org/name@v2", cache=tmp_path / "other", commands=how_to_fetch("org/name", "v2"))
    assert refusal("org/name@v2") == at


def test_the_commands_fetch_config_index_and_headers() -> None:
    assert how_to_fetch("org/name").split("\n") == [
        "  hf download org/name config.json",
        "  hf download org/name --include '*.safetensors.index.json'  # if the weights come in shards; else:",
        "  curl -L -r 0-1048575 https://huggingface.co/org/name/resolve/main/model.safetensors -o model.safetensors.header --fail"
        "  # headers only; put it beside config.json",
    ]
    assert how_to_fetch("org/name", "v2").split("\n") == [
        "  hf download org/name config.json --revision v2",
        "  hf download org/name --include '*.safetensors.index.json' --revision v2  # if the weights come in shards; else:",
        "  curl -L -r 0-1048575 https://huggingface.co/org/name/resolve/v2/model.safetensors -o model.safetensors.header --fail"
        "  # headers only; put it beside config.json",
    ]


def test_a_snapshot_without_config_says_how_to_fetch_it(cache: Path) -> None:
    snapshot = add_snapshot(cache)
    (snapshot / "config.json").unlink()
    says = f"{snapshot}: this snapshot of org/name has no config.json; next: hf download org/name config.json"
    assert refusal("org/name", cache) == says
    assert refusal(f"org/name@{COMMIT}", cache) == f"{says} --revision {COMMIT}"


def test_a_revision_that_is_not_there_names_those_that_are(cache: Path) -> None:
    add_snapshot(cache)
    folder = cache / "models--org--name"
    says = (
        f"{folder}: no snapshot of the revision v2; there are: {COMMIT}; name one as org/name@REVISION, or: hf download org/name"
    )
    assert refusal("org/name@v2", cache) == f"{says} config.json --revision v2"
    (folder / "refs" / "main").write_text("f" * 40)
    assert refusal("org/name", cache) == f"{says} config.json".replace("v2", "main")


@pytest.mark.parametrize(
    ("count", "have"), [(2, "a, b"), (5, "a, b, c, d, e"), (6, "a, b, c, d, e, ..."), (7, "a, b, c, d, e, ...")]
)
def test_at_most_five_snapshots_are_named(cache: Path, count: int, have: str) -> None:
    for commit in "abcdefg"[:count]:
        add_snapshot(cache, commit, ref=None)
    says = (
        f"{cache / 'models--org--name'}: no snapshot of the revision main; there are: {have}; name one as org/name@REVISION, or:"
    )
    assert refusal("org/name", cache) == f"{says} hf download org/name config.json"


def test_a_repository_without_snapshots_says_so(cache: Path) -> None:
    (cache / "models--org--name").mkdir(parents=True)
    says = f"{cache / 'models--org--name'}: no snapshot of the revision {{}}; there is none, or: hf download org/name config.json"
    assert refusal("org/name", cache) == says.format("main")
    assert refusal("org/name@v2", cache) == says.format("v2") + " --revision v2"


def test_a_branch_may_be_called_like_a_commit(cache: Path) -> None:
    add_snapshot(cache)
    snapshot = add_snapshot(cache, "f" * 40, ref="dev")
    assert locate("org/name@dev", hub_cache=cache).folder == snapshot


def test_the_only_snapshot_is_not_taken_for_a_revision_that_was_asked_for(cache: Path) -> None:
    add_snapshot(cache, ref=None)
    assert "no snapshot of the revision v2" in refusal("org/name@v2", cache)
    assert "no snapshot of the revision main" in refusal("org/name@main", cache)


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"../../etc", "'../../etc'"),
        (b"", "''"),
        (b"\xc3\xbf", "'\ufffd\ufffd'"),
        (b"a" * 65, "'" + "a" * 65 + "'"),
        (b"a\nb", "'a\\nb'"),
    ],
)
def test_a_ref_without_a_commit_is_shown(cache: Path, content: bytes, shown: str) -> None:
    add_snapshot(cache)
    ref = cache / "models--org--name" / "refs" / "main"
    ref.write_bytes(content)
    assert refusal("org/name", cache) == f"{ref}: holds {shown}, no commit hash; download the repository again"


@pytest.mark.parametrize("content", ["{}\n", " {} ", "{}"])
def test_space_around_a_commit_does_not_count(cache: Path, content: str) -> None:
    snapshot = add_snapshot(cache)
    (cache / "models--org--name" / "refs" / "main").write_text(content.format(COMMIT))
    assert locate("org/name", hub_cache=cache).folder == snapshot


def test_the_longest_commit_is_64_characters(cache: Path) -> None:
    snapshot = add_snapshot(cache, "a" * 64)
    assert locate("org/name", hub_cache=cache).folder == snapshot
