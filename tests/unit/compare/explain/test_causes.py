"""Each known cause, planted, is named; an unrelated difference is not explained away."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specalign.compare.explain import CAUSES
from specalign.compare.layerwise import compare_dumps
from specalign.compare.result import CompareReport
from specalign.dump.passes import RawTensor
from tests.unit.compare.dumps import MemoryDump, Pass, Row, decode, prefill, rows_of, tensor

LAYERS, WIDTH, EXPERTS = 5, 32, 8
REQUESTS = {name: [ord(name) * 7 % 50 + at * at % 11 for at in range(12)] for name in "pqrs"}
FORWARDS = [[row for name in REQUESTS for row in prefill(name, 8)], *(decode(at, *REQUESTS) for at in range(8, 12))]

Values = NDArray[np.float32]
Streams = dict[str, Values]
Edit = Callable[[Streams, list[Row]], Streams]


def bf16(values: NDArray[Any]) -> Values:
    """Rounded to nearest even, by the definition: 16 bits of a float32 stay."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)
    return rounded.view(np.float32)


def raw(values: Values) -> NDArray[np.uint16]:
    """The bits of bf16 values."""
    return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)


def noise(request: str, position: int, what: str) -> Values:
    """Normal values that depend on the prefix alone."""
    seed = zlib.crc32(repr((REQUESTS[request][: position + 1], what)).encode())
    return np.random.default_rng(seed).normal(size=WIDTH).astype(np.float32)


def stream(rows: list[Row]) -> Streams:
    """A residual stream in bf16: each boundary is the one before plus what the block adds."""
    made: Streams = {"boundary.0": bf16(np.stack([noise(str(r), p, "embedding") for r, p, _ in rows]))}
    for layer in range(LAYERS):
        added = bf16(np.stack([noise(str(r), p, f"layer {layer}") for r, p, _ in rows]))
        made[f"added.{layer}"] = added
        made[f"boundary.{layer + 1}"] = bf16(made[f"boundary.{layer}"] + added)
    last = made[f"boundary.{LAYERS}"]
    made["post_norm"] = bf16(last / np.sqrt((last**2).mean(axis=1, keepdims=True)))
    return made


def routes(rows: list[Row]) -> NDArray[np.int32]:
    """Two different experts for each row."""
    first = np.array([(REQUESTS[str(r)][p] * 5 + p) % EXPERTS for r, p, _ in rows], np.int32)
    return np.stack([first, (first + 1 + np.arange(len(rows), dtype=np.int32) % 3) % EXPERTS], axis=1)


def engine(edit: Edit = lambda streams, rows: streams, name: str = "dump") -> MemoryDump:
    """What an engine records whose streams went through `edit`."""
    passes = []
    for number, rows in enumerate(FORWARDS):
        streams = edit(stream(rows), rows)
        tensors = {key: tensor(key, raw(value)) for key, value in streams.items() if not key.startswith("added")}
        tensors["routes.2"] = tensor("routes.2", routes(rows).view(np.uint32), "I32")
        passes.append(Pass(rows_of(REQUESTS, rows), tensors, number=number))
    return MemoryDump(passes, name)


def shifted(step: int) -> Edit:
    return lambda streams, rows: streams | {f"boundary.{b}": streams[f"boundary.{b + step}"] for b in range(1, LAYERS)}


def at(key: str, change: Callable[[Streams, list[Row]], Values]) -> Edit:
    return lambda streams, rows: streams | {key: change(streams, rows)}


def flip(chosen: Callable[[Row, int], bool], key: str = "boundary.3", step: int = 64) -> Edit:
    """Other values in some rows: `step` representable numbers away."""

    def edit(streams: Streams, rows: list[Row]) -> Streams:
        bits = raw(streams[key])
        hit = np.array([chosen(row, place) for place, row in enumerate(rows)])
        bits[hit, 3] += step
        return streams | {key: (bits.astype(np.uint32) << 16).view(np.float32)}

    return edit


def swap(streams: Streams, rows: list[Row]) -> Streams:
    order = list(range(len(rows)))
    for place, (request, position, _) in enumerate(rows):
        if request in ("p", "q"):
            order[place] = next(i for i, (r, p, _) in enumerate(rows) if r == ("q" if request == "p" else "p") and p == position)
    return streams | {f"boundary.{b}": streams[f"boundary.{b}"][order] for b in range(2, LAYERS + 1)}


def routed_to(expert: int) -> Edit:
    return lambda streams, rows: flip(lambda row, place: expert in routes(rows)[place])(streams, rows)


PLANTED: dict[str, tuple[Edit, str, str]] = {
    "one boundary too late": (shifted(1), "boundary-shifted", "boundary 1 of side b is boundary 2 of side a"),
    "one boundary too early": (shifted(-1), "boundary-shifted", "boundary 1 of side b is boundary 0 of side a"),
    "behind the final norm": (at("boundary.5", lambda s, _: s["post_norm"]), "post-norm", "boundary.5 of side b is post_norm"),
    "what the block adds": (
        at("boundary.3", lambda s, _: s["added.2"]),
        "residual-not-added",
        "boundary.3 of side b plus boundary 2",
    ),
    "the residual twice": (
        at("boundary.3", lambda s, _: bf16(s["boundary.3"] + s["boundary.2"])),
        "residual-twice",
        "plus boundary 2 once more",
    ),
    "rows reversed": (at("boundary.2", lambda s, _: s["boundary.2"][::-1]), "rows-permuted", "in another order"),
    "two requests exchanged": (swap, "rows-permuted", "requests p and q are exchanged"),
    "the last row of each request": (flip(lambda row, _: row[1] == 11), "terminal-rows", "the 4 rows that differ are the last"),
    "one expert": (routed_to(5), "one-expert", "routed to expert 5 of layer 2"),
    "decode steps": (flip(lambda row, _: row[1] >= 8), "one-phase", "ran in decode steps of side b"),
    "the prefill": (flip(lambda row, _: row[1] < 8), "one-phase", "ran in the prefill of side b"),
    "one rounding": (flip(lambda row, place: place % 2 == 0, step=1), "one-rounding", "each by one representable number"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_cause_is_named(name: str) -> None:
    edit, cause, text = PLANTED[name]
    explanation = compare_dumps(engine(), engine(edit)).explanation
    assert explanation is not None
    assert explanation.cause == cause
    assert text in explanation.text
    assert explanation.fits > 0


@pytest.mark.parametrize("name", ["one boundary too late", "behind the final norm", "what the block adds", "the residual twice"])
def test_the_suspect_may_be_side_a(name: str) -> None:
    edit, cause, _ = PLANTED[name]
    explanation = compare_dumps(engine(edit), engine()).explanation
    assert explanation is not None
    assert explanation.cause == cause


def ranks(split: Callable[[NDArray[np.float32]], list[Values]]) -> MemoryDump:
    """Two tensor-parallel ranks whose boundary 3 is what `split` makes of (what the block adds, the stream before it)."""
    passes = []
    for number, rows in enumerate(FORWARDS):
        streams = stream(rows)
        both = np.stack([streams["added.2"], streams["boundary.2"]])
        for rank, value in enumerate(split(both)):
            tensors: dict[str, RawTensor] = {
                key: tensor(key, raw(v)) for key, v in (streams | {"boundary.3": bf16(value)}).items() if "added" not in key
            }
            passes.append(Pass(rows_of(REQUESTS, rows), tensors, rank, number, (("tp", rank),)))
    return MemoryDump(passes, layout={"tp": 2})


@pytest.mark.parametrize(
    "split",
    [
        pytest.param(lambda both: [0.25 * both[0] + both[1], 0.75 * both[0]], id="the residual in one rank"),
        pytest.param(lambda both: [0.25 * both[0] + both[1], 0.75 * both[0] + both[1]], id="the residual in every rank"),
        pytest.param(lambda both: [0.25 * both[0], 0.75 * both[0]], id="no residual"),
    ],
)
def test_partial_sums_of_two_ranks(split: Callable[[NDArray[np.float32]], list[Values]]) -> None:
    plain = engine()
    for item in plain.passes:
        del item.tensors["routes.2"]
    report = compare_dumps(plain, ranks(split))
    assert report.explanation is not None
    assert report.explanation.cause == "partial-sum"
    assert "replica-differs" in {problem.code for problem in report.problems}


def unexplained(report: CompareReport) -> None:
    assert report.first is not None
    assert report.explanation is None, report.explanation


@pytest.mark.parametrize("seed", range(8))
def test_an_unrelated_difference_is_not_explained(seed: int) -> None:
    """Noise in a random third of the rows, far beyond one rounding."""
    random = np.random.default_rng(seed)
    unexplained(compare_dumps(engine(), engine(flip(lambda row, place: random.random() < 0.33, f"boundary.{1 + seed % 5}"))))


def test_one_wrong_row_is_not_explained_by_where_it_stands() -> None:
    """A single row is in many sets by accident; it lies in the decode part and is the last one, and that proves nothing."""
    unexplained(compare_dumps(engine(), engine(flip(lambda row, _: row[:2] == ("p", 11)))))


def test_noise_in_every_row_is_not_explained() -> None:
    unexplained(compare_dumps(engine(), engine(flip(lambda row, _: True))))


def test_every_cause_is_planted_somewhere() -> None:
    assert {cause for _, cause, _ in PLANTED.values()} | {"partial-sum"} == set(CAUSES)


def test_no_difference_needs_no_explanation() -> None:
    report = compare_dumps(engine(), engine())
    assert report.ok
    assert report.explanation is None


def test_a_shift_is_seen_in_fingerprints() -> None:
    from tests.unit.compare.dumps import fingerprinted

    report = compare_dumps(engine(), fingerprinted(engine(shifted(1))))
    assert report.explanation is not None
    assert report.explanation.cause == "boundary-shifted"
    assert dataclasses.asdict(report.explanation)["tried"] > 0
