"""Equal infinities and NaN on both sides fail, also where both sides hold only fingerprints: these were green once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specalign.compare.layerwise import compare_dumps
from specalign.compare.report.json_report import to_json
from specalign.compare.report.text import format_text
from specalign.compare.result import CompareReport
from specalign.dump.convert import convert
from specalign.dump.dtypes import DTYPES
from specalign.dump.fingerprint import fingerprint_rows
from specalign.dump.nonfinite import count_nonfinite
from specalign.dump.opening import open_dump
from specalign.dump.passes import Dump, RawTensor
from tests.unit.compare.dumps import PADDING, MemoryDump, Pass, Row, decode, fingerprinted, prefill, run, tensor
from tests.unit.dump.plain_fingerprints import SPECIAL_CODES, plain_counts

REQUESTS = {"long": [1, 2, 3, 4, 5, 6], "short": [7, 8, 9]}
FORWARDS = (prefill("long", 3) + prefill("short", 2), decode(3, "long"), decode(4, "long") + decode(2, "short"))
NAN, PLUS, MINUS = 0x7FC0, 0x7F80, 0xFF80


def put(codes: dict[tuple[str, str, int], list[int]], **options: Any) -> MemoryDump:
    """A dump with these codes in place of the first values of (key, request, position)."""

    def edit(key: str, row: Row, made: Any) -> Any:
        made = made.copy()
        made[: len(codes.get((key, str(row[0]), row[1]), []))] = codes.get((key, str(row[0]), row[1]), [])
        return made

    return run(REQUESTS, *FORWARDS, edit=edit, **options)


def codes_of(report: CompareReport) -> set[str]:
    return {problem.code for problem in report.problems}


def both_hashed(dump: MemoryDump) -> CompareReport:
    return compare_dumps(fingerprinted(dump), fingerprinted(dump))


@pytest.mark.parametrize("code", [NAN, PLUS, MINUS, 0xFFC1])
def test_equal_ones_in_fingerprints_of_both_sides_fail(code: int) -> None:
    report = both_hashed(put({("boundary.2", "long", 4): [code]}))
    assert codes_of(report) == {"non-finite"}
    assert not report.ok
    assert report.first is None, "no bit differs"
    (key,) = [key for key in report.keys if key.nonfinite_a or key.nonfinite_b]
    assert (key.key, key.nonfinite_a, key.nonfinite_b) == ("boundary.2", 1, 1)


def test_the_first_row_is_named_as_for_values() -> None:
    """By position, then in the order of the rows; whatever the order of the forwards and of the keys in them."""
    dump = put({("boundary.1", "long", 4): [NAN], ("boundary.1", "short", 2): [NAN, NAN], ("boundary.1", "long", 5 - 2): [PLUS]})
    (hashed,) = both_hashed(dump).problems
    (values,) = compare_dumps(dump, dump).problems
    assert "side a, request short, position 2, an unknown channel" in hashed.where
    assert hashed.where.replace("an unknown channel (fingerprints count)", "channel 0") == values.where
    assert (hashed.how_much, values.how_much) == ("4 elements on side a, 4 on side b",) * 2


def test_minus_infinity_is_legal_in_logits_and_logprobs_alone() -> None:
    masked = {(key, "long", 3): [MINUS, MINUS] for key in ("logits", "logprobs")}
    keys = ("boundary.0", "logits", "logprobs")
    assert both_hashed(put(masked, keys=keys)).ok
    assert codes_of(both_hashed(put(masked | {("boundary.0", "long", 3): [MINUS]}, keys=keys))) == {"non-finite"}
    for code in (NAN, PLUS):
        report = both_hashed(put(masked | {("logits", "short", 1): [code, MINUS]}, keys=keys))
        (problem,) = report.problems
        assert problem.where.startswith("logits, side a, request long, position 1, ") or "position 1, " in problem.where
        assert problem.how_much == "1 elements on side a, 1 on side b"


def test_each_side_is_counted_by_itself() -> None:
    """Different rows anyway: the figures of either side are its own, and swapping the sides swaps them."""
    good, bad = put({}), put({("boundary.3", "short", 1): [NAN, NAN, PLUS]})
    for left, right, expected in ((good, bad, (0, 3)), (bad, good, (3, 0))):
        report = compare_dumps(fingerprinted(left), fingerprinted(right))
        assert "non-finite" in codes_of(report)
        assert report.first is not None
        assert next((key.nonfinite_a, key.nonfinite_b) for key in report.keys if key.key == "boundary.3") == expected


def test_values_against_fingerprints_count_both_sides_and_name_the_channel() -> None:
    dump = put({("boundary.2", "long", 1): [0, NAN]})
    for pair in ((dump, fingerprinted(dump)), (fingerprinted(dump), dump)):
        report = compare_dumps(*pair)
        (problem,) = report.problems
        assert "position 1, channel 1" in problem.where
        assert problem.how_much == "1 elements on side a, 1 on side b"


def test_a_finite_dump_passes_without_a_note() -> None:
    report = both_hashed(put({}))
    assert report.ok
    assert report.notes == ()
    assert compare_dumps(put({}), put({})).notes == ()


def test_fingerprints_without_counts_still_say_that_they_are_blind() -> None:
    old = fingerprinted(put({("boundary.2", "long", 4): [NAN]}), counted=False)
    report = compare_dumps(old, old)
    assert report.ok
    (note,) = report.notes
    assert "only fingerprints of boundary.0" in note
    assert "without counts" in note


def test_counts_of_one_side_speak_for_both() -> None:
    """Equal fingerprints are equal bits: what the new dump counted holds for the old one."""
    dump = put({("boundary.2", "long", 4): [NAN]})
    for pair in (
        (fingerprinted(dump), fingerprinted(dump, counted=False)),
        (fingerprinted(dump, counted=False), fingerprinted(dump)),
    ):
        report = compare_dumps(*pair)
        assert report.notes == ()
        assert codes_of(report) == {"non-finite"}


def test_the_note_names_only_the_keys_without_counts() -> None:
    new, old = fingerprinted(put({})), fingerprinted(put({}), counted=False)
    mixed = MemoryDump([
        dataclasses.replace(one, tensors=one.tensors | {"boundary.2": two.tensors["boundary.2"]})
        for one, two in zip(new.passes, old.passes, strict=True)
    ])  # fmt: skip
    (note,) = compare_dumps(mixed, mixed).notes
    assert "fingerprints of boundary.2," in note


def test_integers_have_nothing_to_be_blind_to() -> None:
    routes = run(REQUESTS, *FORWARDS, keys=("routes.0",), dtype="I32")
    report = compare_dumps(fingerprinted(routes), fingerprinted(routes))
    assert report.ok
    assert report.notes == ()


@pytest.mark.parametrize("dtype", SPECIAL_CODES)
def test_every_type(dtype: str) -> None:
    for code in SPECIAL_CODES[dtype]:
        never, negative = plain_counts([code], dtype)
        dump = put({("boundary.1", "short", 2): [code]}, dtype=dtype, keys=("boundary.0", "boundary.1"))
        report = both_hashed(dump)
        assert report.ok == (not never and not negative), hex(code)
        assert report.keys[1].nonfinite_a == report.keys[1].nonfinite_b == never + negative


def sharded(dump: MemoryDump, axis: str) -> MemoryDump:
    """The same on two tensor-parallel ranks, as fingerprints with counts."""
    passes = []
    for item in dump.passes:
        for rank in range(2):
            tensors = {}
            for key, whole in item.tensors.items():
                if axis == "hidden@tp":
                    data, begin = whole.data[:, 4 * rank : 4 * rank + 4], 8 * rank
                else:
                    half = len(item.rows) // 2
                    data, begin = whole.data[half * rank : half * (rank + 1)], 0
                spec = dataclasses.replace(tensor(key, data, axis=axis).spec, fingerprint=True, counted=True)
                tensors[key] = RawTensor(spec, fingerprint_rows(data, first_byte=begin), count_nonfinite(data, DTYPES["BF16"]))
            passes.append(Pass(item.rows, tensors, rank, item.number, (("tp", rank),)))
    return MemoryDump(passes, axis, layout={"tp": 2}, world=2)


@pytest.mark.parametrize("axis", ["hidden@tp", "tokens@sp"])
def test_counts_of_shards_add_up(axis: str) -> None:
    def edit(key: str, row: Row, made: Any) -> Any:
        made = made.copy()
        if key == "boundary.1" and row[1] == 3:
            made[2:6] = NAN  # two in either shard
        return made

    for wrong in (True, False):
        dump = run({"r": [1, 2, 3, 4]}, prefill("r", 4), width=8, edit=edit if wrong else None)
        report = compare_dumps(fingerprinted(dump), sharded(dump, axis))
        assert report.ok != wrong, report.problems
        if wrong:
            (problem,) = report.problems
            assert "position 3" in problem.where
            assert problem.how_much == "4 elements on side a, 4 on side b"


def test_a_copy_whose_counts_differ_is_no_copy() -> None:
    dump = fingerprinted(run({"r": [1, 2, 3]}, prefill("r", 3)))
    (one,) = dump.passes
    lies = {key: dataclasses.replace(t, nonfinite=np.full((3, 2), 1, np.uint32)) for key, t in one.tensors.items()}
    pair = [dataclasses.replace(one, coords=(("tp", 0),)), dataclasses.replace(one, tensors=lies, rank=1, coords=(("tp", 1),))]
    both = MemoryDump(pair, "copies", layout={"tp": 2}, world=2)
    assert "replica-differs" in codes_of(compare_dumps(both, both))


def converted(tmp_path: Path, dump: MemoryDump, name: str) -> Dump:
    convert(dump, tmp_path / name, fingerprint=True)
    return open_dump(tmp_path / name)


@pytest.mark.parametrize("jobs", [1, 2])
def test_through_files_and_processes(tmp_path: Path, jobs: int) -> None:
    """Decode steps of several forwards are gathered: the counts must follow their rows."""
    bad = put({("boundary.2", "short", 2): [NAN], ("post_norm", "long", 3): [MINUS, MINUS]})
    report = compare_dumps(converted(tmp_path, bad, "a"), converted(tmp_path, bad, "b"), jobs=jobs)
    assert {problem.where: problem.how_much for problem in report.problems} == {
        "boundary.2, side a, request short, position 2, an unknown channel (fingerprints count)": "1 elements on side a, 1 on side b",
        "post_norm, side a, request long, position 3, an unknown channel (fingerprints count)": "2 elements on side a, 2 on side b",
    }
    good = compare_dumps(converted(tmp_path, put({}), "c"), converted(tmp_path, put({}), "d"), jobs=jobs)
    assert good.ok
    assert good.notes == ()


def test_counts_follow_their_rows_through_padding_and_other_orders_of_rows() -> None:
    """Small forwards are gathered row by row; side a is an old dump, so that what is named was counted on side b."""
    bad = {("boundary.2", "short", 2): [NAN, NAN], ("boundary.2", "long", 4): [NAN]}
    turned = (
        [PADDING, *prefill("short", 2), *prefill("long", 3)],
        [PADDING, PADDING, *decode(3, "long")],
        [PADDING, *decode(2, "short"), PADDING, *decode(4, "long")],
    )

    def edit(key: str, row: Row, made: Any) -> Any:
        codes = bad.get((key, str(row[0]), row[1]), [])
        return np.concatenate([np.array(codes, made.dtype), made[len(codes) :]])

    a, b = run(REQUESTS, *FORWARDS, edit=edit), run(REQUESTS, *turned, edit=edit)
    (problem,) = compare_dumps(fingerprinted(a, counted=False), fingerprinted(b)).problems
    assert problem.where == "boundary.2, side b, request short, position 2, an unknown channel (fingerprints count)"
    assert problem.how_much == "0 elements on side a, 3 on side b"


def test_the_reports_say_it() -> None:
    report = both_hashed(put({("boundary.2", "long", 4): [NAN, NAN]}))
    text = format_text(report)
    assert "non-finite: a 2, b 2" in text
    assert "an unknown channel" in text
    entry = next(key for key in to_json(report)["keys"] if key["key"] == "boundary.2")
    assert (entry["fingerprint"], entry["nonfinite_a"], entry["nonfinite_b"]) == (True, 2, 2)
