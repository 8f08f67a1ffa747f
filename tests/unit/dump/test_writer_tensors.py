"""Which rows and tensors the writer takes: all others are refused before anything is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specalign.dump.passes import RawTensor, TensorSpec
from specalign.dump.reader import open_specalign
from specalign.dump.rows import Rows
from specalign.dump.writer import DumpWriter
from tests.unit.dump.damaged import names_in, refusal
from tests.unit.dump.made import bits, manifest, prefill, tensor

ROWS = prefill({"a": [1, 2, 3]})
GOOD = tensor("boundary.1", bits(3))
PRINTS = tensor("boundary.1", bits(3), fingerprint=True)
COUNTED = dataclasses.replace(PRINTS.spec, counted=True)
NONE = np.zeros((3, 2), "<u4")


def changed(**fields: Any) -> RawTensor:
    return RawTensor(dataclasses.replace(GOOD.spec, **fields), GOOD.data)


TENSORS: dict[str, tuple[list[RawTensor], str]] = {
    "no key": ([changed(key="hidden.1")], "hidden.1"),
    "a key with the prefix of fingerprints": ([changed(key="fingerprint.boundary.1")], "TensorSpec.fingerprint"),
    "a key of half a surrogate": ([changed(key="module.\ud800")], "key"),
    "a key of the rows": ([changed(key="tokens")], "tokens"),
    "an unknown type": ([changed(dtype="F4")], "F4"),
    "another size of type": ([changed(dtype="F32")], "uint16"),
    "signed integers": ([RawTensor(GOOD.spec, GOOD.data.view("<i2"))], "int16"),
    "big-endian": ([RawTensor(GOOD.spec, GOOD.data.astype(">u2"))], ">u2"),
    "another shape": ([changed(shape=(3, 9))], "[3, 9]"),
    "another shape of as many": ([changed(shape=(3, 2, 4))], "[3, 2, 4]"),
    "no axis": ([RawTensor(TensorSpec("logits", "F32", ()), np.zeros((), "<u4"))], "logits"),
    "other rows": ([tensor("boundary.1", bits(4))], "4 rows"),
    "an unknown site": ([changed(site="inside")], "inside"),
    "an unknown axis": ([changed(axis="hidden@pp")], "hidden@pp"),
    "a key twice": ([GOOD, GOOD], "boundary.1 comes twice"),
    "fingerprints that are none": ([changed(fingerprint=True)], "uint64"),
    "fingerprints of other rows": ([RawTensor(dataclasses.replace(GOOD.spec, fingerprint=True), np.zeros((2, 2), "<u8"))], "[3, 2]"),
    "counts of a whole tensor": ([RawTensor(dataclasses.replace(GOOD.spec, counted=True), GOOD.data, NONE)], "counted=True"),
    "counts that nobody announced": ([RawTensor(PRINTS.spec, PRINTS.data, NONE)], "counted=False"),
    "counts that do not come": ([RawTensor(COUNTED, PRINTS.data)], "without counts"),
    "counts of integers": ([RawTensor(dataclasses.replace(COUNTED, dtype="I16"), PRINTS.data, NONE)], "floats"),
    "counts of other rows": ([RawTensor(COUNTED, PRINTS.data, NONE[:2])], "[2, 2]"),
    "counts of another type": ([RawTensor(COUNTED, PRINTS.data, NONE.astype("<u8"))], "uint64"),
    "a share that is not the rank's": ([tensor("boundary.1", bits(1), axis="tokens@sp")], "1 rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_that_the_format_does_not_take_is_refused_unwritten(tmp_path: Path, name: str) -> None:
    given, named = TENSORS[name]
    writer = DumpWriter(tmp_path, manifest())
    refusal(lambda: writer.write_pass(ROWS, given), writer.folder / "pass00000.safetensors", named)
    writer.close()
    assert names_in(writer.folder) == [".lock"]


BAD_ROWS: dict[str, tuple[Callable[[Rows], dict[str, Any]], str]] = {
    "columns of different lengths": (lambda rows: {"tokens": rows.tokens[:2]}, "lengths"),
    "an unknown kind": (lambda rows: {"kinds": rows.kinds + 7}, "row_kind"),
    "an unknown request": (lambda rows: {"requests": rows.requests + 1}, "requests"),
    "a negative position": (lambda rows: {"positions": rows.positions - 1}, "positions"),
    "a request id that is no text": (lambda rows: {"request_ids": (1,)}, "strings"),
    "a request id of half a surrogate": (lambda rows: {"request_ids": ("\ud800",)}, "requests"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_that_contradict_themselves_are_refused_unwritten(tmp_path: Path, name: str) -> None:
    change, named = BAD_ROWS[name]
    writer = DumpWriter(tmp_path, manifest())
    refusal(lambda: writer.write_pass(dataclasses.replace(ROWS, **change(ROWS)), []), "pass00000", named)
    writer.close()
    assert names_in(writer.folder) == [".lock"]


def test_sequence_parallel_ranks_hold_equal_shares(tmp_path: Path) -> None:
    rows = prefill({"a": [1, 2, 3, 4]})
    with DumpWriter(tmp_path, manifest(world=2, layout={"tp": 2}), rank=1, coords=[("tp", 1)]) as writer:
        writer.write_pass(rows, [tensor("boundary.1", bits(2), axis="tokens@sp")])
        refusal(lambda: writer.write_pass(rows, [tensor("boundary.1", bits(4), axis="tokens@sp")]), "4 rows on each of 2")


def test_tensors_of_any_strides_are_written_in_order(tmp_path: Path) -> None:
    data = bits(8, 6).T[::2]
    with DumpWriter(tmp_path, manifest()) as writer:
        writer.write_pass(ROWS, [tensor("boundary.1", data), tensor("boundary.2", np.broadcast_to(data[:1], (3, 8)))])
    dump = open_specalign(tmp_path)
    loaded = dump.load(dump.infos()[0])
    assert np.array_equal(loaded["boundary.1"].data, data)
    assert np.array_equal(loaded["boundary.2"].data, np.broadcast_to(data[:1], (3, 8)))
