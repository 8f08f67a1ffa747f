"""Pipeline stages: whatever the split, the last stage hands on what one stage would have."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.capture import (
    CaptureError,
    CapturePlan,
    Carried,
    Stage,
    StageLayout,
    capture_loop,
    run_stage,
    skip_stage,
)
from specalign.layer_ids import POST_NORM
from tests.unit.capture.probes import BLOCKS, PlainBlock, ResidualBlock, TimesThousand, start

SPLITS = [((0, a), (a, BLOCKS)) for a in range(BLOCKS + 1)] + [
    ((0, a), (a, b), (b, BLOCKS)) for a, b in itertools.combinations_with_replacement(range(BLOCKS + 1), 2)
]
ALL = (POST_NORM, *range(BLOCKS, -1, -1))


def run_split(ranges: Any, states: Any, *, residual: bool, rows: tuple[int, ...] = (3,)) -> Any:
    """All stages one after another, everything sent between them as plain named tensors."""
    plan = CapturePlan(states, BLOCKS)
    layout = StageLayout(ranges, BLOCKS)
    stream: Any = (start(rows), None) if residual else start(rows)
    make = ResidualBlock if residual else PlainBlock
    carried, result = None, None
    for number in range(len(ranges)):
        stage = layout.stage(number)
        blocks = [make(i) for i in range(stage.start, stage.end)]
        with torch.no_grad():
            result = run_stage(stage, blocks, stream, plan, carried=carried, final_norm=TimesThousand() if stage.last else None)
        sent = {"hidden_states": result.hidden, **result.carried.to_tensors()} if not stage.last else {}
        carried = Carried.from_tensors(sent, plan, end=stage.end) if not stage.last else None
        stream = (result.hidden, result.residual) if residual else result.hidden
    return result


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("ranges", SPLITS, ids=str)
def test_every_split_gives_what_one_stage_gives(ranges: Any, residual: bool) -> None:
    result = run_split(ranges, ALL, residual=residual)
    assert [tensor[0, 0].item() for tensor in result.states] == [63000, 63, 31, 15, 7, 3, 1, 0]


@pytest.mark.parametrize("ranges", SPLITS, ids=str)
def test_every_state_belongs_to_exactly_one_stage(ranges: Any) -> None:
    plan, layout = CapturePlan(ALL, BLOCKS), StageLayout(ranges, BLOCKS)
    owned = [state for number in range(len(ranges)) for state in layout.stage(number).owned(plan)]
    assert owned == [*range(BLOCKS + 1), POST_NORM]


def test_the_edge_is_captured_once_by_the_stage_that_ends_there() -> None:
    plan, layout = CapturePlan((3,), BLOCKS), StageLayout(((0, 3), (3, 6)), BLOCKS)
    assert [layout.stage(number).owned(plan) for number in range(2)] == [(3,), ()]


@pytest.mark.parametrize("rows", [(0,), (2, 0)])
def test_an_idle_batch_that_runs_gives_empty_states(rows: tuple[int, ...]) -> None:
    result = run_split(((0, 2), (2, 6)), (6, 2, 0, POST_NORM), residual=True, rows=rows)
    assert [tuple(tensor.shape) for tensor in result.states] == [(*rows, 4)] * 4


def test_an_idle_batch_that_is_skipped_gives_empty_states() -> None:
    plan, layout = CapturePlan((6, 2, POST_NORM), BLOCKS), StageLayout.even(BLOCKS, 2)
    first = skip_stage(layout.stage(0), plan, width=4, dtype=torch.bfloat16)
    carried = Carried.from_tensors(first.carried.to_tensors(), plan, end=3)
    last = skip_stage(layout.stage(1), plan, width=4, dtype=torch.bfloat16, carried=carried)
    assert first.states is None
    assert first.hidden is None
    assert last.states is not None
    assert [(tuple(tensor.shape), tensor.dtype) for tensor in last.states] == [((0, 4), torch.bfloat16)] * 3
    with pytest.raises(CaptureError, match="is not empty"):
        skip_stage(layout.stage(0), plan, width=4, dtype=torch.bfloat16, rows=(1,))


def test_a_stage_that_is_the_whole_model_is_the_loop() -> None:
    plan = CapturePlan((6, 1), BLOCKS)
    blocks = [PlainBlock(i) for i in range(BLOCKS)]
    result = run_stage(Stage.whole(BLOCKS), blocks, start(), plan)
    assert result.states is not None
    assert all(map(torch.equal, result.states, capture_loop(blocks, start(), plan).states))


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        ((), "at least one stage"),
        (((0, 3), (4, 6)), "stage 1 holds blocks 4..5, and must begin with block 3"),
        (((0, 3), (2, 6)), "stage 1 holds blocks 2..5, and must begin with block 3"),
        (((1, 6),), "stage 0 holds blocks 1..5, and must begin with block 0"),
        (((0, 3), (3, 2)), "stage 1 holds"),
        (((0, 3), (3, 5)), "the stages end at block 4, and the target has 6 blocks"),
        (((0, 3), (3, 7)), "the stages end at block 6, and the target has 6 blocks"),
    ],
)
def test_a_layout_has_no_gap_and_no_overlap(ranges: Any, says: str) -> None:
    with pytest.raises(CaptureError, match=says):
        StageLayout(ranges, BLOCKS)


def test_even_layouts() -> None:
    assert StageLayout.even(36, 4).ranges == ((0, 9), (9, 18), (18, 27), (27, 36))
    assert StageLayout.even(7, 3).ranges == ((0, 3), (3, 5), (5, 7))
    for stages in (0, 8):
        with pytest.raises(CaptureError, match="cannot be split"):
            StageLayout.even(7, stages)
    with pytest.raises(CaptureError, match="there is no stage 2"):
        StageLayout.even(6, 2).stage(2)
    with pytest.raises(CaptureError, match="there is no stage -1"):
        StageLayout.even(6, 2).stage(-1)


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ({}, r"missing \[0, 2\]"),
        ({"boundary.0": 1}, r"missing \[2\]"),
        ({"boundary.0": 1, "boundary.2": 1, "boundary.3": 1}, r"not expected \[3\]"),
        ({"boundary.0": 1, "boundary.02": 1}, "carried tensor 'boundary.02'"),
        ({"boundary.0": 1, "boundary.-2": 1}, "carried tensor 'boundary.-2'"),
        ({"boundary.0": 1, "boundary.²": 1}, "carried tensor"),
    ],
)
def test_carried_states_arrive_whole(sent: dict[str, Any], says: str) -> None:
    tensors = {name: start() for name in sent}
    with pytest.raises(CaptureError, match=says):
        Carried.from_tensors(tensors, CapturePlan((6, 2, 0, POST_NORM), BLOCKS), end=3)


def last_stage(**changes: Any) -> Any:
    plan = CapturePlan((6, 2), BLOCKS)
    blocks = [PlainBlock(i) for i in range(3, 6)]
    given: dict[str, Any] = {
        "stage": StageLayout.even(BLOCKS, 2).stage(1),
        "blocks": blocks,
        "stream": start(),
        "plan": plan,
        "carried": Carried(plan, 3, {2: start()}),
    } | changes
    return run_stage(given.pop("stage"), given.pop("blocks"), given.pop("stream"), given.pop("plan"), **given)


def test_the_last_stage_runs() -> None:
    assert [tensor[0, 0].item() for tensor in last_stage().states] == [56, 0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"carried": None}, "is not the first one and needs carried="),
        ({"blocks": [PlainBlock(3)]}, "1 blocks for a stage of blocks 3..5"),
        ({"stream": start((2,))}, r"carried boundary 2 is \[3, 4\] and the stream is \[2, 4\]"),
        ({"carried": Carried(CapturePlan((6, 2), BLOCKS), 2, {2: start()})}, "captured up to boundary 2"),
        ({"carried": Carried(CapturePlan((6, 1), BLOCKS), 3, {1: start()})}, r"for \[6, 1\]; this stage"),
        ({"plan": CapturePlan((6, 2), 7)}, "a stage of a 6-layer target, and a plan for 7"),
        ({"stage": Stage(0, 3, BLOCKS, first=True, last=False)}, "must not get carried states"),
        (
            {
                "plan": (normed := CapturePlan((6, 2, POST_NORM), BLOCKS)),
                "carried": Carried(normed, 3, {2: start()}),
            },
            "no final norm",
        ),
    ],
)
def test_states_of_another_batch_stage_or_plan_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CaptureError, match=says):
        last_stage(**changes)
