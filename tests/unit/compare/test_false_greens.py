"""The ways in which published comparers pass by accident; none of them is green here.

Holes (a) to (f) are those of slime's layerwise comparer; the others of SGLang's `dump_comparator` and `comparator/`: everything is
compared in float32, what only one side has is skipped, and one tensor that passes is enough.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from specalign.compare.declared import Declared
from specalign.compare.layerwise import compare_dumps
from specalign.compare.modes import parse_mode
from specalign.compare.result import CompareReport
from specalign.compare.selection import parse_selection
from specalign.dump.passes import RawTensor
from tests.unit.compare.dumps import KEYS, MemoryDump, Pass, Row, fingerprinted, flip, prefill, rows_of, run, tensor

REQUESTS = {"r": [3, 1, 4, 1, 5, 9]}
ALL = prefill("r", 6)
NAN, MINUS_INF = 0x7FC0, 0xFF80


def codes(report: CompareReport) -> set[str]:
    return {problem.code for problem in report.problems}


def good() -> MemoryDump:
    return run(REQUESTS, ALL)


def put(bits: int, *, key: str = "boundary.2", position: int = 3) -> Any:
    """An edit that puts one value into one row."""

    def edit(at: str, row: Row, made: Any) -> Any:
        if at == key and row[1] == position:
            made = made.copy()
            made[2] = bits
        return made

    return edit


def without(dump: MemoryDump, *keys: str) -> MemoryDump:
    """The dump without some tensors."""
    passes = [dataclasses.replace(p, tensors={k: t for k, t in p.tensors.items() if k not in keys}) for p in dump.passes]
    return MemoryDump(passes, "fewer")


def test_equal_dumps_are_equal() -> None:
    """Without this, everything below would prove nothing."""
    assert compare_dumps(good(), good()).ok


def test_a_nan_on_one_side() -> None:
    """(a) A running maximum by Python's `max` drops NaN."""
    report = compare_dumps(good(), run(REQUESTS, ALL, edit=put(NAN)))
    assert not report.ok
    assert codes(report) == {"non-finite"}
    assert report.first is not None
    assert (report.first.key, report.first.position, report.first.channel, report.first.bits_b) == ("boundary.2", 3, 2, NAN)


@pytest.mark.parametrize("bits", [NAN, MINUS_INF, 0x7F80])
def test_the_same_non_finite_value_on_both_sides(bits: int) -> None:
    """Equal bits prove nothing about what lies behind them."""
    report = compare_dumps(run(REQUESTS, ALL, edit=put(bits)), run(REQUESTS, ALL, edit=put(bits)))
    assert codes(report) == {"non-finite"}
    assert "position 3, channel 2" in report.problems[0].where
    assert report.first is None


def test_minus_infinity_is_legal_in_logits_and_nan_is_not() -> None:
    keys = ("boundary.0", "logits")
    legal = run(REQUESTS, ALL, keys=keys, edit=put(MINUS_INF, key="logits"))
    assert compare_dumps(legal, legal).ok
    nan = run(REQUESTS, ALL, keys=keys, edit=put(NAN, key="logits"))
    assert codes(compare_dumps(nan, nan)) == {"non-finite"}


def test_a_position_that_is_missing() -> None:
    """(b) "At least one token a layer" is no coverage."""
    report = compare_dumps(good(), run(REQUESTS, prefill("r", 3), prefill("r", 2, 4)))
    assert not report.ok
    assert "position" in next(p.where for p in report.problems if p.code == "rows-missing")


def test_a_request_in_the_middle_of_which_rows_are_missing() -> None:
    report = compare_dumps(good(), run(REQUESTS, prefill("r", 6)[:2] + prefill("r", 6)[3:]))
    assert codes(report) == {"rows-missing"}
    assert report.a.missing == 1


def test_a_repeated_observation_that_differs() -> None:
    """(d) First observation wins, and the second is never looked at."""
    twice = run(REQUESTS, ALL, [*ALL])
    twice.passes[1].tensors["boundary.1"] = tensor("boundary.1", twice.passes[1].tensors["boundary.1"].data ^ 1)
    assert codes(compare_dumps(good(), twice)) == {"repeat-differs"}
    assert codes(compare_dumps(twice, good())) == {"repeat-differs"}


def test_another_element_type() -> None:
    """(e) `.float()` hides it."""
    other = run(REQUESTS, ALL, dtype="F16")
    report = compare_dumps(good(), other)
    assert codes(report) == {"dtype-mismatch", "nothing-compared"}
    assert not report.ok


def test_zeros_of_opposite_sign() -> None:
    """(e) −0.0 == +0.0."""
    report = compare_dumps(run(REQUESTS, ALL, edit=put(0x0000)), run(REQUESTS, ALL, edit=put(0x8000)))
    assert not report.ok
    assert next(key for key in report.keys if key.key == "boundary.2").zero_signs == 1


def test_copies_of_two_ranks_that_differ() -> None:
    """(f) Only the first rank is read."""
    one = good().passes[0]
    wrong = dict(one.tensors) | {"boundary.1": tensor("boundary.1", one.tensors["boundary.1"].data ^ 1)}
    ranks = MemoryDump(
        [dataclasses.replace(one, coords=(("tp", 0),)), dataclasses.replace(one, rank=1, tensors=wrong, coords=(("tp", 1),))],
        layout={"tp": 2},
    )
    report = compare_dumps(good(), ranks)
    assert codes(report) == {"replica-differs"}
    assert not report.ok


def test_a_tensor_that_one_side_lacks() -> None:
    """What only the baseline has is ignored, and one tensor that passes is enough."""
    for pair in ((good(), without(good(), "boundary.3")), (without(good(), "boundary.3"), good())):
        report = compare_dumps(*pair)
        assert codes(report) == {"key-missing"}
        assert not report.ok


def test_a_tensor_that_one_forward_lacks_on_both_sides() -> None:
    """Both sides skipped it in the same forward, so that nothing is missing from one of them alone."""
    halves = run(REQUESTS, prefill("r", 3), prefill("r", 3, 3))
    del halves.passes[1].tensors["boundary.2"]
    report = compare_dumps(halves, halves)
    assert codes(report) == {"rows-missing"}
    assert "boundary.2" in report.problems[0].what
    assert "3 of 6 rows" in report.problems[0].how_much


def test_nothing_at_all() -> None:
    """Empty tensors pass elsewhere."""
    empty = MemoryDump([Pass(rows_of(REQUESTS, []), {"boundary.0": tensor("boundary.0", np.empty((0, 6), np.uint16))})])
    for pair in ((empty, empty), (MemoryDump([]), MemoryDump([]))):
        report = compare_dumps(*pair)
        assert not report.ok
        assert "nothing-compared" in codes(report)


def test_a_layer_that_was_asked_for_and_that_nobody_has() -> None:
    report = compare_dumps(good(), good(), selection=parse_selection("0-5"))
    assert codes(report) == {"key-missing"}
    assert "boundary.4, boundary.5, boundary.6" in report.problems[0].what


def test_selection_of_layers() -> None:
    report = compare_dumps(good(), run(REQUESTS, ALL, edit=put(0)), selection=parse_selection("0"))
    assert report.ok
    assert [key.key for key in report.keys] == ["boundary.1"]


def test_another_width() -> None:
    assert codes(compare_dumps(good(), run(REQUESTS, ALL, width=5))) == {"width-mismatch", "nothing-compared"}


def test_expected_rows_by_number() -> None:
    assert compare_dumps(good(), good(), expect=6).ok
    assert codes(compare_dumps(good(), good(), expect=7)) == {"expected-rows"}


def test_expecting_the_rows_of_one_side() -> None:
    part = run(REQUESTS, prefill("r", 3))
    assert not compare_dumps(good(), part).ok
    assert compare_dumps(good(), part, expect="b").ok
    assert not compare_dumps(good(), part, expect="a").ok


def test_a_declared_gap_and_a_stale_declaration() -> None:
    part = run(REQUESTS, prefill("r", 3))
    gap = Declared("b", "the run was cut", positions=(3, None))
    assert compare_dumps(good(), part, declared=[gap]).ok
    assert codes(compare_dumps(good(), good(), declared=[gap])) == {"stale-declaration"}
    narrow = Declared("b", "the run was cut", positions=(3, 4))
    assert codes(compare_dumps(good(), part, declared=[narrow])) == {"rows-missing"}, (
        "row 5 follows a missing row: no terminal row"
    )


def test_a_declared_key() -> None:
    gap = Declared("b", "not recorded there", keys="boundary.3")
    assert compare_dumps(good(), without(good(), "boundary.3"), declared=[gap]).ok
    assert codes(compare_dumps(good(), without(good(), "boundary.3"), declared=[dataclasses.replace(gap, side="a")])) == {
        "key-missing",
        "stale-declaration",
    }


def test_fingerprints_see_one_bit() -> None:
    wrong = run(REQUESTS, ALL, edit=lambda key, row, made: flip(made) if key == "boundary.1" and row[1] == 2 else made)
    assert compare_dumps(good(), fingerprinted(good())).ok
    for pair in ((good(), fingerprinted(wrong)), (fingerprinted(wrong), good()), (fingerprinted(good()), fingerprinted(wrong))):
        report = compare_dumps(*pair)
        assert report.first is not None
        assert (report.first.key, report.first.position, report.keys[1].rows_mismatching) == ("boundary.1", 2, 1)


def test_fingerprints_have_no_tolerance() -> None:
    with pytest.raises(ValueError, match="--mode bits"):
        compare_dumps(good(), fingerprinted(good()), mode=parse_mode("ulp:1"))


def test_a_tolerance_is_what_the_caller_asked_for() -> None:
    wrong = run(REQUESTS, ALL, edit=lambda key, row, made: flip(made) if key == "boundary.1" else made)
    assert compare_dumps(good(), wrong, mode=parse_mode("ulp:1")).ok
    assert not compare_dumps(good(), wrong, mode=parse_mode("ulp:0")).ok


def test_several_processes_find_the_same() -> None:
    halves = [prefill("r", 3), prefill("r", 2, 3), prefill("r", 1, 5)]
    wrong = run(REQUESTS, *halves, edit=lambda key, row, made: flip(made) if key == "boundary.2" and row[1] in (1, 4) else made)
    one, two = (compare_dumps(good(), wrong, jobs=jobs) for jobs in (1, 2))
    assert one == two
    assert one.first is not None


def test_shards_are_put_together() -> None:
    """Columns over tp, rows over sp, and a copy of what is not shared."""
    whole = good().passes[0]
    ranks = []
    for rank in (0, 1):
        tensors: dict[str, RawTensor] = {"boundary.0": whole.tensors["boundary.0"]}
        for key in KEYS[1:3]:
            tensors[key] = tensor(key, whole.tensors[key].data[:, 3 * rank : 3 * rank + 3], axis="hidden@tp")
        for key in KEYS[3:]:
            tensors[key] = tensor(key, whole.tensors[key].data[3 * rank : 3 * rank + 3], axis="tokens@sp")
        ranks.append(dataclasses.replace(whole, rank=rank, tensors=tensors, coords=(("tp", rank),)))
    both = MemoryDump(ranks, layout={"tp": 2})
    assert compare_dumps(good(), both).ok
    report = compare_dumps(good(), MemoryDump(ranks[:1], layout={"tp": 2}))
    assert "shard-missing" in codes(report)
    assert not report.ok


def test_shards_in_the_wrong_order() -> None:
    whole = good().passes[0]
    ranks = [
        dataclasses.replace(
            whole,
            rank=rank,
            coords=(("tp", rank),),
            tensors={
                "boundary.1": tensor("boundary.1", whole.tensors["boundary.1"].data[:, 3 * (1 - rank) :][:, :3], axis="hidden@tp")
            },
        )
        for rank in (0, 1)
    ]
    report = compare_dumps(
        without(good(), "boundary.0", "boundary.2", "boundary.3", "post_norm"), MemoryDump(ranks, layout={"tp": 2})
    )
    assert report.keys[0].rows_mismatching == 6


def test_context_parallel_ranks_hold_rows_of_their_own() -> None:
    """Zigzag: rank 0 has the first and the last quarter. Each rank says which rows it holds."""
    whole = run({"r": [3, 1, 4, 1, 5, 9, 2, 6]}, prefill("r", 8))
    pieces = ([0, 1, 6, 7], [2, 3, 4, 5])
    requests = {"r": [3, 1, 4, 1, 5, 9, 2, 6]}
    ranks = []
    for rank, positions in enumerate(pieces):
        part = run(requests, [("r", position, 0) for position in positions]).passes[0]
        ranks.append(dataclasses.replace(part, rank=rank, coords=(("cp", rank),)))
    report = compare_dumps(whole, MemoryDump(ranks, layout={"cp": 2}))
    assert report.ok
    assert report.keys[0].rows_compared == 8


def test_pipeline_stages_hold_layers_of_their_own() -> None:
    whole = good().passes[0]
    early = {key: whole.tensors[key] for key in KEYS[:2]}
    late = {key: whole.tensors[key] for key in KEYS[2:]}
    ranks = [
        dataclasses.replace(whole, rank=rank, tensors=tensors, coords=(("pp", rank),))
        for rank, tensors in enumerate((early, late))
    ]
    report = compare_dumps(good(), MemoryDump(ranks, layout={"pp": 2}))
    assert report.ok
    assert len(report.keys) == len(KEYS)
    assert report.b.rows == 6


def test_chunks_of_a_virtual_pipeline_are_passes_of_their_own() -> None:
    """One rank runs both chunks one after the other: the same rows in two passes, each with layers of its own, are no repeats."""
    whole = good().passes[0]
    chunks = [
        dataclasses.replace(whole, number=number, tensors={key: whole.tensors[key] for key in keys})
        for number, keys in enumerate((KEYS[:2], KEYS[2:]))
    ]
    report = compare_dumps(good(), MemoryDump(chunks))
    assert report.ok
    assert [key.rows_compared for key in report.keys] == [6] * len(KEYS)
    lost = MemoryDump(
        [chunks[0], dataclasses.replace(chunks[1], rows=whole.rows, tensors=dict(list(chunks[1].tensors.items())[1:]))]
    )
    assert codes(compare_dumps(good(), lost)) == {"key-missing"}
