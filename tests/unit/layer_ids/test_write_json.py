"""Writing a config: whole or not at all, and nothing is left behind."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from specalign.layer_ids.files import InputError
from specalign.layer_ids.rewrite import write_json_atomically


@pytest.fixture
def _masked() -> Iterator[None]:
    """A umask that no default has."""
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal(data: dict[str, object], out: Path) -> str:
    with pytest.raises(InputError) as caught:
        write_json_atomically(data, out)
    return str(caught.value)


def test_two_spaces_ascii_and_a_line_break_at_the_end(tmp_path: Path) -> None:
    write_json_atomically({"ids": [1], "name": "é"}, tmp_path / "out.json")
    assert (tmp_path / "out.json").read_bytes() == b'{\n  "ids": [\n    1\n  ],\n  "name": "\\u00e9"\n}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.usefixtures("_masked")
@pytest.mark.parametrize(("mask", "mode"), [(0o027, 0o640), (0o022, 0o644), (0o077, 0o600), (0o000, 0o666)])
def test_a_new_file_gets_what_the_umask_allows_and_the_umask_stays(tmp_path: Path, mask: int, mode: int) -> None:
    os.umask(mask)
    write_json_atomically({}, tmp_path / "out.json")
    assert mode_of(tmp_path / "out.json") == mode
    assert os.umask(mask) == mask


@pytest.mark.usefixtures("_masked")
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666])
def test_an_existing_file_keeps_its_mode_and_a_link_stays_one(tmp_path: Path, mode: int) -> None:
    real, link = tmp_path / "blob", tmp_path / "config.json"
    real.write_text("old")
    real.chmod(mode)
    link.symlink_to("blob")
    write_json_atomically({"a": 1}, link)
    assert (link.is_symlink(), real.read_text(), mode_of(real)) == (True, '{\n  "a": 1\n}\n', mode)


def test_until_the_data_is_on_the_disk_the_old_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / ("x" * 100 + ".json")
    out.write_text("old")
    out.chmod(0o604)
    seen: list[tuple[str, str, int]] = []

    def look(descriptor: int) -> None:
        for file in tmp_path.iterdir():
            seen.append((file.name, file.read_text(), mode_of(file)))

    monkeypatch.setattr(os, "fsync", look)
    write_json_atomically({"a": 1}, out)
    (part, *new), old = sorted(seen)
    assert old == (out.name, "old", 0o604)
    assert new == ['{\n  "a": 1\n}\n', 0o604], "whole, and with its mode, before it takes the name"
    # Hidden, named after the file, and cut so that a name of the longest kind has room for what mkstemp adds.
    assert part.startswith("." + "x" * 64 + ".")
    assert part.endswith(".part")
    assert len(part) == 1 + 64 + 1 + 8 + len(".part")
    assert out.read_text() == '{\n  "a": 1\n}\n'


def test_what_json_has_not_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert refusal({"a": math.nan}, out).startswith(f"cannot write {out}: Out of range float values")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named_by_the_system(tmp_path: Path) -> None:
    out = tmp_path / "gone" / "out.json"
    assert refusal({}, out) == f"cannot write {out}: No such file or directory"


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.symlink_to("out.json")
    assert refusal({}, out).startswith(f"cannot write {out}: ")


@pytest.mark.parametrize(
    ("error", "says"), [(OSError(28, "No space left on device"), "No space left on device"), (OSError("odd"), "odd")]
)
def test_a_disk_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, says: str
) -> None:
    out = tmp_path / "out.json"
    out.write_text("old")

    def fail(descriptor: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    assert refusal({"a": 1}, out) == f"cannot write {out}: {says}"
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("out.json", "old")]


def test_a_rest_that_cannot_be_removed_does_not_hide_why_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    def deny(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(Path, "unlink", deny)
    assert refusal({}, tmp_path / "out.json") == f"cannot write {tmp_path / 'out.json'}: No space left on device"
