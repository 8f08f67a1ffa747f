"""Dumps that were made to pass: each of these was green once."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from specalign.compare.declared import Declared
from specalign.compare.layerwise import compare_dumps
from specalign.compare.modes import parse_mode
from specalign.compare.result import CompareReport
from specalign.dump.errors import DumpError
from specalign.dump.passes import RawTensor
from tests.unit.compare.dumps import KEYS, MemoryDump, Pass, Row, fingerprinted, flip, prefill, rows_of, run, tensor


def codes(report: CompareReport) -> set[str]:
    return {problem.code for problem in report.problems}


def dropped(dump: MemoryDump, key: str, numbers: set[int]) -> MemoryDump:
    """A dump that lacks a key in some forwards."""
    passes = [
        dataclasses.replace(p, tensors={k: t for k, t in p.tensors.items() if k != key or p.number not in numbers})
        for p in dump.passes
    ]
    return MemoryDump(passes, "fewer")


def nan_at(key: str, position: int) -> Any:
    def edit(at: str, row: Row, made: Any) -> Any:
        if at == key and row[1] == position:
            made = made.copy()
            made[1] = 0x7FC0
        return made

    return edit


# Terminal rows


def test_last_tokens_that_differ_are_no_terminal_rows() -> None:
    report = compare_dumps(run({"r": [1, 2, 3, 4, 5]}, prefill("r", 5)), run({"r": [1, 2, 3, 4, 9]}, prefill("r", 5)))
    assert codes(report) == {"rows-missing"}


def test_requests_that_share_a_first_token_alone_are_no_terminal_rows() -> None:
    many = {f"r{i}": [1, 100 + i] for i in range(5)}
    report = compare_dumps(run(many, [row for name in many for row in prefill(name, 2)]), run({"q": [1, 7]}, prefill("q", 2)))
    assert "rows-missing" in codes(report)
    assert report.a.terminal == 0


def test_one_ending_excuses_one_row() -> None:
    """Five samples of a prompt, and an engine that ran the prompt once: one of them may have ended there, not five."""
    many = {f"r{i}": [1, 2, 3, 100 + i] for i in range(5)}
    report = compare_dumps(run(many, [row for name in many for row in prefill(name, 4)]), run({"q": [1, 2, 3]}, prefill("q", 3)))
    assert codes(report) == {"rows-missing"}
    assert (report.a.terminal, report.a.missing) == (1, 4)


# Declared gaps


def test_a_gap_of_one_side_does_not_excuse_the_other() -> None:
    request = {"r": list(range(1, 21))}
    forwards = (prefill("r", 10), prefill("r", 5, 10), prefill("r", 5, 15))
    a, b = dropped(run(request, *forwards), "boundary.2", {0}), dropped(run(request, *forwards), "boundary.2", {1})
    report = compare_dumps(a, b, declared=[Declared("b", "known", keys="boundary.*")])
    assert not report.ok
    assert compare_dumps(run(request, *forwards), b, declared=[Declared("b", "known", keys="boundary.*")]).ok
    narrow = compare_dumps(run(request, *forwards), b, declared=[Declared("b", "known", keys="boundary.*")])
    assert {key.key: key.rows_compared for key in narrow.keys}["boundary.1"] == 20


def test_a_gap_in_rows_does_not_excuse_a_missing_key() -> None:
    request = {"r": list(range(1, 21))}
    part = run(request, prefill("r", 18), keys=KEYS[:2])
    report = compare_dumps(run(request, prefill("r", 20)), part, declared=[Declared("b", "stopped two tokens early")])
    assert codes(report) == {"key-missing"}


def test_a_gap_of_one_request_does_not_excuse_the_same_row_of_another() -> None:
    requests = {"warm": [1, 2, 3], "real": [1, 2, 3]}
    a = run(requests, prefill("warm", 3) + prefill("real", 3))
    b = run({"x": [1, 2, 3]}, prefill("x", 1))
    assert not compare_dumps(a, b, declared=[Declared("b", "warm-up", requests="warm")]).ok


# Values


def test_a_nan_that_one_side_has_as_a_value_and_the_other_as_a_fingerprint() -> None:
    full = run({"r": [1, 2, 3, 4, 5]}, prefill("r", 5), edit=nan_at("boundary.2", 3))
    for counted in (True, False):
        hashed = fingerprinted(full, counted=counted)
        for pair in ((full, hashed), (hashed, full)):
            report = compare_dumps(*pair)
            assert codes(report) == {"non-finite"}
            assert "position 3, channel 1" in report.problems[0].where, "the side of values knows the channel"


def test_rows_of_no_elements() -> None:
    dump = run({"r": [1, 2, 3, 4, 5]}, prefill("r", 5))
    dump.passes[0].tensors["boundary.2"] = tensor("boundary.2", np.zeros((5, 0), np.uint16))
    report = compare_dumps(dump, dump)
    assert codes(report) == {"nothing-compared"}
    assert not report.ok


@pytest.mark.parametrize("mode", ["ulp:1", "abs:1", "rel:1"])
def test_whole_numbers_have_no_tolerance(mode: str) -> None:
    """Expert 3 is not expert 4."""
    keys = ("boundary.0", "routes.0")
    a = run({"r": [1, 2, 3]}, prefill("r", 3), keys=keys, dtype="I32")
    b = run({"r": [1, 2, 3]}, prefill("r", 3), keys=keys, dtype="I32", edit=lambda key, row, made: made + (key == "routes.0"))
    report = compare_dumps(a, b, mode=parse_mode(mode))
    assert not report.ok
    assert report.explanation is None, "no rounding makes another expert"


def test_figures_under_a_tolerance_agree_with_each_other() -> None:
    """−0 counts as +0 then, in the largest distance and in that of the first mismatch."""
    a = run({"r": [1]}, prefill("r", 1), edit=lambda key, row, made: np.array([0x8001] * len(made), np.uint16))
    b = run({"r": [1]}, prefill("r", 1), edit=lambda key, row, made: np.array([0x0001] * len(made), np.uint16))
    report = compare_dumps(a, b, mode=parse_mode("ulp:1"))
    assert report.first is not None
    assert report.first.ulp == report.keys[0].max_ulp == report.keys[0].cells[0].max_ulp == 2


# Ranks


def shares(rows: int, *, layout: dict[str, int], axis: str = "tokens@sp", width: int = 6) -> MemoryDump:
    """Two ranks that hold `rows` of the 8 rows each."""
    of_all = rows_of({"r": list(range(8))}, prefill("r", 8))
    ranks = [
        Pass(
            of_all,
            {"boundary.1": tensor("boundary.1", np.full((rows, width), rank, np.uint16), axis=axis)},
            rank,
            0,
            (("tp", rank),),
        )
        for rank in range(2)
    ]
    return MemoryDump(ranks, layout=layout)


def test_shares_that_do_not_make_a_whole() -> None:
    with pytest.raises(DumpError, match="has 4 rows over all ranks, and the forward has 8"):
        compare_dumps(shares(2, layout={"tp": 2}), shares(2, layout={"tp": 2}))


def test_shares_of_a_layout_that_nobody_states() -> None:
    with pytest.raises(DumpError, match="does not say how many"):
        compare_dumps(shares(4, layout={}), shares(4, layout={}))


def test_a_rank_that_lacks_its_copy() -> None:
    rows, data = rows_of({"r": list(range(8))}, prefill("r", 8)), np.arange(48, dtype=np.uint16).reshape(8, 6)

    def rank(number: int, *keys: str) -> Pass:
        tensors: dict[str, RawTensor] = {key: tensor(key, data) for key in keys}
        return Pass(rows, tensors, number, 0, (("tp", number),))

    dump = MemoryDump([rank(0, "boundary.1", "boundary.2"), rank(1, "boundary.1")], layout={"tp": 2})
    assert codes(compare_dumps(dump, dump)) == {"shard-missing"}


# Figures


def test_a_row_that_two_requests_share_counts_for_both() -> None:
    requests = {"r1": [1, 2, 3, 4], "r2": [1, 2, 3, 5]}
    schedule = [*prefill("r1", 4), *prefill("r2", 4)]
    wrong = run(requests, schedule, edit=lambda key, row, made: flip(made) if key == "boundary.1" and row[1] == 1 else made)
    assert [match.rows_mismatching for match in compare_dumps(run(requests, schedule), wrong).requests] == [1, 1]


def test_a_position_beyond_all_sense_takes_no_memory() -> None:
    a = run({"r": [1, 2, 3]}, prefill("r", 3))
    far = run({"x": [1, 2, 3]}, prefill("x", 1, 2))
    far.passes[0].rows.positions[0] = 2**31 - 2
    assert not compare_dumps(a, far).ok
