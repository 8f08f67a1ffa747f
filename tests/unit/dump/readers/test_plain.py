"""Plain safetensors, with our keys or names mapped to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from specalign.dump.keys import RowKind
from specalign.dump.readers import open_foreign
from specalign.dump.readers.plain import open_plain
from tests.unit.dump.readers.foreign import assert_bits, load_all, noise, plain_rows, refused


def column(*values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def write(path: Path, **tensors: Tensor) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name.replace("__", "."): value for name, value in tensors.items()}, path)
    return path


def test_a_file_with_our_keys_is_one_request_by_its_name(tmp_path: Path) -> None:
    state, normed = noise(3, 8), noise(3, 8, seed=1)
    path = write(
        tmp_path / "sample.safetensors", tokens=column(5, 6, 7), positions=column(0, 1, 2), boundary__3=state, post_norm=normed
    )
    for target in (path, tmp_path):
        dump = open_foreign(target)
        rows = dump.rows(dump.infos()[0])
        assert (rows.tokens.tolist(), rows.positions.tolist(), rows.request_ids) == ([5, 6, 7], [0, 1, 2], ("sample",))
        assert rows.kinds.tolist() == [RowKind.PREFILL] * 3
        assert_bits(load_all(dump)[0]["boundary.3"], state)
        assert_bits(load_all(dump)[0]["post_norm"], normed)
        assert dump.notes == ()


def test_a_folder_is_one_pass_a_file_and_requests_go_on(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "requests": column(4, 9, 4, -1, dtype=torch.int32),
        "row_kind": column(0, 0, 0, 2, dtype=torch.uint8),
    }
    write(tmp_path / "0.safetensors", tokens=column(5, 6, 7, 0), positions=column(0, 0, 1, 0), boundary__1=noise(4, 8), **columns)
    write(
        tmp_path / "1.safetensors",
        tokens=column(8),
        positions=column(2),
        requests=column(4, dtype=torch.int32),
        boundary__1=noise(1, 8),
    )
    dump = open_foreign(tmp_path)
    first, second = (dump.rows(info) for info in dump.infos())
    assert (first.request_ids, first.requests.tolist()) == (("4", "9"), [0, 1, 0, -1])
    assert second.request_ids == ("4",)


def test_names_of_transformers_are_mapped(tmp_path: Path) -> None:
    state = noise(1, 3, 8)
    path = write(
        tmp_path / "hf.safetensors",
        input_ids=torch.tensor([[5, 6, 7]]),
        position_ids=torch.tensor([[0, 1, 2]]),
        hidden_states__0=state,
    )
    names = {"input_ids": "tokens", "position_ids": "positions", "hidden_states.0": "boundary.0"}
    dump = open_plain(path, names=names)
    assert dump.rows(dump.infos()[0]).tokens.tolist() == [5, 6, 7]
    assert_bits(load_all(dump)[0]["boundary.0"], state[0])
    assert "does not say which tokens" in refused(open_plain, path)
    assert "no key" not in str(dump.notes)


def test_other_tensors_are_left_out_with_a_note(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", tokens=column(5), positions=column(0), boundry__3=noise(1, 8), logits=noise(4, 8))
    dump = open_foreign(tmp_path)
    assert not dump.infos()[0].tensors
    assert "boundry.3 is left out: it is no key of a dump, and names= does not map it (passes: 1)" in dump.notes
    assert "logits is left out: not one row for each token (passes: 1)" in dump.notes


def test_rows_may_be_given(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", boundary__3=noise(2, 8))
    assert "Save tokens and positions" in refused(open_foreign, tmp_path)
    dump = open_foreign(tmp_path, rows={0: plain_rows(2)})
    assert dump.rows(dump.infos()[0]).request_ids == ("given",)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"tokens": column(5, 6)}, "no positions"),
        ({"tokens": column(5, 6), "positions": column(0, 0)}, "holds several requests; save requests"),
        ({"tokens": column(5, 6), "positions": column(0)}, "different lengths"),
        ({"tokens": torch.zeros(2), "positions": column(0, 1)}, "tokens is F32"),
        ({"tokens": column(5, 6), "positions": column(0, -1), "requests": column(0, 0)}, "has positions -1"),
        ({"tokens": column(5, 6), "positions": column(0, 1), "requests": column(0, -1)}, "only padding may"),
        ({"tokens": column(5, 6), "positions": column(0, 1), "boundary__1": noise(3, 8)}, "the pass has 2 token rows"),
    ],
)
def test_rows_that_cannot_be_are_refused(tmp_path: Path, tensors: dict[str, Tensor], words: str) -> None:
    write(tmp_path / "a.safetensors", **tensors)
    assert words in refused(open_foreign, tmp_path)


def test_two_tensors_for_one_key_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", tokens=column(5), positions=column(0), x=noise(1, 8), boundary__1=noise(1, 8))
    assert "are both boundary.1" in refused(open_plain, path, names={"x": "boundary.1"})
    assert "both mapped to boundary.2" in refused(open_plain, path, names={"x": "boundary.2", "y": "boundary.2"})
    assert "no tensor key" in refused(open_plain, path, names={"x": "hidden.2"})


def test_a_checkpoint_is_no_dump(tmp_path: Path) -> None:
    write(tmp_path / "model-00001-of-00002.safetensors", w=noise(2, 2))
    assert "shards of a checkpoint" in refused(open_foreign, tmp_path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", tokens=column(5), positions=column(0), boundary__1=noise(1, 8))
    whole = path.read_bytes()
    for length in range(0, len(whole), 5):
        path.write_bytes(whole[:length])
        assert str(path) in refused(open_foreign, path)


def test_it_reads_without_torch_and_maps_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", tokens=column(5), positions=column(0), boundary__1=noise(1, 8))
    data = load_all(open_plain(path))[0]["boundary.1"].data
    assert not data.flags.writeable
    assert np.shares_memory(data, data)
