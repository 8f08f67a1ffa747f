"""Torch files of one layout: parsed once, and only taken for each other where the parser itself would find the same."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specalign.dump.files import map_file
from specalign.dump.readers import torch_files
from specalign.dump.readers.torch_files import load_torch_file, open_torch_file
from specalign.dump.readers.torch_layouts import Layouts, TorchLayout, layout_of
from specalign.dump.readers.torch_zip import TorchZip, UnknownArchiveError
from tests.unit.dump.readers.foreign import bits, save


@pytest.fixture(autouse=True)
def _no_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_files, "_LAYOUTS", Layouts())


def made(number: int, **others: Any) -> dict[str, Any]:
    """What a step writes: tensors that differ from step to step, and plain values that do not."""
    return {
        "x": torch.full((2, 3), number),
        "pair": [torch.arange(5.0) + number, torch.zeros(0)],
        "ids": ["a", 1, None],
        **others,
    }


def test_files_of_one_layout_are_parsed_once_and_keep_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []

    class Counted(TorchZip):
        def __init__(self, path: Path, mapped: Any) -> None:
            parsed.append(path.name)
            super().__init__(path, mapped)

    monkeypatch.setattr(torch_files, "TorchZip", Counted)
    for number in range(4):  # the name of the file is that of the folder in it
        found = load_torch_file(save(tmp_path / f"step{number}.pt", made(number)))
        assert (int(found["x"].data[1, 2]), found["ids"]) == (number, ["a", 1, None])
        assert np.array_equal(found["pair"][0].data, bits(torch.arange(5.0) + number))
        found["ids"].append("changed by a reader")
    assert parsed == ["step0.pt", "step1.pt"]


def test_pickles_that_differ_from_step_to_step_leave_no_layouts(tmp_path: Path) -> None:
    files = [save(tmp_path / f"step{number}.pt", made(number, count=number)) for number in range(4)]
    assert len({file.stat().st_size for file in files}) == 1
    for _ in range(2):
        assert [open_torch_file(file).layout for file in files] == [None] * 4
    assert [load_torch_file(file)["count"] for file in files] == [0, 1, 2, 3]


def test_another_value_is_another_layout(tmp_path: Path) -> None:
    paths = save(tmp_path / "a.pt", made(0)), save(tmp_path / "b.pt", made(0, ids=["b", 1, None]))
    layouts = [known_layout(path) for path in paths]
    assert [load_torch_file(path)["ids"] for path in paths] == [["a", 1, None], ["b", 1, None]]
    assert layouts[0].number != layouts[1].number


def test_a_part_is_what_the_whole_has_there(tmp_path: Path) -> None:
    for _ in range(3):
        file = open_torch_file(save(tmp_path / "a.pt", made(7)))
        assert list(file.names) == ["x", "pair", "ids"]
        assert np.array_equal(file.part("pair")[0].data, file.value["pair"][0].data)


def known_layout(path: Path) -> TorchLayout:
    open_torch_file(path)
    layout = open_torch_file(path).layout
    assert layout is not None
    return layout


def test_no_flipped_bit_is_taken_for_the_layout_that_the_parser_would_refuse_or_read_otherwise(tmp_path: Path) -> None:
    layout = known_layout(save(tmp_path / "a.pt", made(1)))
    whole = save(tmp_path / "b.pt", made(2)).read_bytes()
    path, fits = tmp_path / "c.pt", 0
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 0x41
        path.write_bytes(flipped)
        mapped = map_file(path)
        if layout.fits(mapped):
            fits += 1
            assert same(*read_both(path, layout)), f"byte {at}"
    assert 0 < fits < len(whole) / 2


def read_both(path: Path, layout: TorchLayout) -> tuple[Any, Any]:
    """What the layout makes of a file, and what the parser does."""
    mapped = map_file(path)
    archive = TorchZip(path, mapped)  # raises what is refused
    fresh = torch_files._Plain("a test", archive).of(archive.value, 0)
    return (torch_files.filled(value, mapped) for value in (layout.value, fresh))  # type: ignore[return-value]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return (a.dtype, a.data.tolist()) == (b.dtype, b.data.tolist()) if dataclasses.is_dataclass(a) else bool(a == b)


def test_a_file_of_two_folders_does_not_fit(tmp_path: Path) -> None:
    layout = known_layout(save(tmp_path / "a.pt", made(1)))
    data = bytearray(save(tmp_path / "b.pt", made(1)).read_bytes())
    at = data.rindex(b"b/version")
    data[at : at + 1] = b"c"
    (tmp_path / "c.pt").write_bytes(data)
    assert not layout.fits(map_file(tmp_path / "c.pt"))
    with pytest.raises(UnknownArchiveError):
        TorchZip(tmp_path / "c.pt")


def test_a_record_that_reaches_into_the_directory_leaves_no_layout(tmp_path: Path) -> None:
    """What may differ in the directory would be a part of the pickle then."""
    path = save(tmp_path / "a.pt", made(1))
    mapped = map_file(path)
    archive = TorchZip(path, mapped)
    assert layout_of(archive, None, mapped) is not None
    record = archive.records["data.pkl"]
    records = archive.records | {"data.pkl": record._replace(size=len(mapped) - record.begin)}
    assert layout_of(types.SimpleNamespace(records=records), None, mapped) is None  # type: ignore[arg-type]


def test_layouts_are_few(tmp_path: Path) -> None:
    layouts = Layouts()
    for number in range(30):
        layouts.add(known_layout(save(tmp_path / "a.pt", {"x": torch.zeros(64 * number)})))
    assert len(layouts._known) == 8
