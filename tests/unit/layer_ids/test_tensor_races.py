"""Weights that change while they are read, and the choice among several indexes."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from specalign.layer_ids import tensor_files
from tests.unit.safetensors_files import facts_of, refusal, serialize


def test_a_header_that_got_shorter_since_its_size_was_taken_is_refused_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()

    @contextlib.contextmanager
    def shrunk(path: Path) -> Iterator[tuple[BinaryIO, int]]:
        """Ten bytes when its size was taken, and nine when it is read."""
        yield io.BytesIO((2).to_bytes(8, "little") + b"{"), 10

    monkeypatch.setattr(tensor_files, "open_regular", shrunk)
    assert refusal(tmp_path) == f"{file}: changed while it was read; run again when nobody writes to it"


@pytest.mark.parametrize("other", ["a.safetensors.index.json", "z.safetensors.index.json"])
def test_the_usual_index_wins_wherever_its_name_stands_among_others(tmp_path: Path, other: str) -> None:
    (tmp_path / other).write_text(json.dumps({"weight_map": {"x": "gone.safetensors"}}))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"y": "s.safetensors"}}))
    (tmp_path / "s.safetensors").write_bytes(serialize({"y": ("uint8", [1], b"1")}))
    assert facts_of(tmp_path).listed == {"y"}
