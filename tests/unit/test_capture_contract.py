"""The library's own captures keep the contract: the loop, the hooks, pipeline stages and tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("hypothesis")
torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402

from pytest_specalign.contracts import CaptureContract  # noqa: E402
from pytest_specalign.contracts.probe import MAX_LAYERS, ProbeError, ProbeLayout, ProbeModel, Value  # noqa: E402
from pytest_specalign.contracts.probe_split import RankError, RankProbe, RankSet, StageProbe, split_stages  # noqa: E402
from specalign.capture import CapturePlan, Stage, StageLayout, capture_loop, capture_states, run_stage  # noqa: E402
from specalign.layer_ids import POST_NORM, State  # noqa: E402

FEW = settings(max_examples=10, deadline=None)


def embedded(model: Any) -> Any:
    hidden = model.embed_tokens(model.tokens)
    return (hidden, None) if model.layout.style == "residual" else hidden


class TestLoop(CaptureContract):
    post_norm = True

    def capture(self, probe: ProbeModel, states: Sequence[State]) -> Sequence[Tensor]:
        plan = CapturePlan(tuple(states), probe.num_layers)
        return capture_loop(list(probe.layers), embedded(probe), plan, final_norm=probe.norm).states

    def capture_stages(self, stages: Sequence[StageProbe], states: Sequence[State]) -> Sequence[Tensor]:
        plan = CapturePlan(tuple(states), stages[0].num_layers)
        stream, carried = embedded(stages[0]), None
        for place, part in enumerate(stages):
            stage = layout_of(stages).stage(place)
            result = run_stage(stage, list(part.layers), stream, plan, carried=carried, final_norm=part.norm)
            stream = result.hidden if result.residual is None else (result.hidden, result.residual)
            carried = result.carried
        assert result.states is not None
        return result.states

    def capture_ranks(self, ranks: RankSet, states: Sequence[State]) -> Sequence[Sequence[Tensor]]:
        def on_one(rank: RankProbe) -> Sequence[Tensor]:
            plan = CapturePlan(tuple(states), rank.num_layers)
            return capture_loop(list(rank.layers), embedded(rank), plan, final_norm=rank.norm, complete=rank.all_reduce).states

        return ranks.run(on_one)


def layout_of(stages: Sequence[StageProbe]) -> StageLayout:
    return StageLayout(tuple((stage.start, stage.end) for stage in stages), stages[0].num_layers)


class TestHooks(CaptureContract):
    post_norm = True
    duplicates = "keep"

    def capture(self, probe: ProbeModel, states: Sequence[State]) -> Sequence[Tensor]:
        with capture_states(probe, states, duplicates="keep") as captured:
            probe(probe.tokens)
        return captured.states


class TestHooksOnADeepTarget(TestHooks):
    settings = FEW
    num_layers = 36
    styles = ("residual",)
    dtypes = (torch.bfloat16,)


def by_hand(probe: ProbeModel) -> list[Tensor]:
    """Every boundary by running the blocks, and POST_NORM."""
    stream = (probe.embed_tokens(probe.tokens), None)
    found = [stream[0].clone()]
    for layer in probe.layers:
        stream = layer(*stream) if probe.layout.style == "residual" else (layer(stream[0]), None)
        found.append(stream[0].clone() if stream[1] is None else stream[0] + stream[1])
    return [*found, probe.norm(*stream)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("in_place", ["never", "scratch", "running"])
@pytest.mark.parametrize("style", ["plain", "residual"])
def test_the_closed_form_is_what_the_blocks_compute(style: Any, in_place: Any, dtype: torch.dtype) -> None:
    probe = ProbeModel(ProbeLayout(MAX_LAYERS, style, in_place, dtype=dtype))
    states: list[Any] = [*range(MAX_LAYERS + 1), POST_NORM]
    for state, tensor in zip(states, by_hand(probe), strict=True):
        assert torch.equal(tensor, probe.expected(state)), state
    assert torch.equal(probe(probe.tokens), probe.expected(POST_NORM))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n", [6, 8, MAX_LAYERS])
def test_no_two_boundaries_share_a_value_at_any_row_and_channel(n: int, dtype: torch.dtype) -> None:
    probe = ProbeModel(ProbeLayout(n, tokens=tuple(range(16)), dtype=dtype))
    streams = torch.stack([probe.expected(b) for b in range(n + 1)])
    assert bool((streams.diff(dim=0) >= 3).all())
    assert bool((probe.expected(POST_NORM) < 0).all())
    assert len({tuple(row) for row in streams[2].tolist()}) == 16


@pytest.mark.parametrize("tokens", [(0,), (3, 1, 4, 15, 9)])
@pytest.mark.parametrize("in_place", ["never", "scratch"])
def test_every_value_of_a_probe_is_told_from_every_other(tokens: tuple[int, ...], in_place: Any) -> None:
    probe = ProbeModel(ProbeLayout(8, "residual", in_place, tokens=tokens, dtype=torch.bfloat16))
    rank = RankSet(ProbeLayout(8, "residual", tokens=tokens), "partial").probes[0]
    for values in (probe.values(), rank.values()):
        kinds = {tuple(tensor.flatten().tolist()): value for value, tensor in values.items()}
        assert len(kinds) == len(values)


def test_a_probe_that_would_not_be_exact_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.\.48 blocks, not 49"):
        ProbeLayout(49)
    with pytest.raises(ValueError, match="token 16"):
        ProbeLayout(tokens=(16,))


@given(st.lists(st.integers(1, 7), unique=True, min_size=1, max_size=3).map(sorted), st.sampled_from(["plain", "residual"]))
def test_stages_run_one_after_the_other_are_the_whole_model(cuts: list[int], style: Any) -> None:
    probe = ProbeModel(ProbeLayout(8, style))
    stages = split_stages(probe, cuts)
    stream: Any = probe.tokens
    for stage in stages:
        stream = stage(stream)
    assert torch.equal(stream, probe.expected(POST_NORM))
    assert [(s.start, s.end) for s in stages] == list(zip([0, *cuts], [*cuts, 8], strict=True))


@pytest.mark.parametrize("kind", ["partial", "scattered"])
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_together_are_the_whole_model(kind: Any, size: int) -> None:
    ranks = RankSet(ProbeLayout(8, "residual"), kind, size)
    for normed in ranks.run(lambda rank: rank(rank.tokens)):
        assert torch.equal(normed, ranks.probes[0].expected(POST_NORM))


def test_what_a_rank_returns_is_its_part_only() -> None:
    ranks = RankSet(ProbeLayout(8, "residual"), "partial")
    hidden, residual = ranks.run(lambda rank: rank.layers[0](rank.embed_tokens(rank.tokens)))[0]
    values = ranks.probes[0].values()
    assert torch.equal(hidden + residual, values[Value("partial", 1, 0)])
    assert not torch.equal(hidden + residual, values[Value("boundary", 1)])


def test_a_rank_that_skips_a_collective_is_named_and_nobody_waits() -> None:
    ranks = RankSet(ProbeLayout(8, "residual"), "partial")
    with pytest.raises(RankError, match="rank 0 waits in all_reduce number 0, which rank 1 never calls"):
        ranks.run(lambda rank: rank.all_reduce(torch.ones(1)) if rank.rank == 0 else None)


def test_different_collectives_at_once_are_named() -> None:
    ranks = RankSet(ProbeLayout(8, "residual"), "partial")
    with pytest.raises(RankError, match="rank 0 calls all_reduce, rank 1 calls all_gather"):
        ranks.run(lambda rank: (rank.all_gather if rank.rank else rank.all_reduce)(torch.ones(1)))


def test_a_ranks_own_error_comes_before_that_of_those_who_waited_for_it() -> None:
    ranks = RankSet(ProbeLayout(8, "residual", fails_at=3), "partial")

    def on_one(rank: RankProbe) -> None:
        if rank.rank == 1:
            raise KeyError("mine")
        rank.all_reduce(torch.ones(1))

    with pytest.raises(KeyError, match="mine"):
        ranks.run(on_one)


def test_a_block_fails_where_it_was_told_to() -> None:
    probe = ProbeModel(ProbeLayout(8, fails_at=3))
    with pytest.raises(ProbeError, match="block 3"):
        probe(probe.tokens)


def test_stage_of_the_library_agrees_with_the_probe() -> None:
    assert layout_of(split_stages(ProbeModel(ProbeLayout(8)), [3])).stage(1) == Stage(3, 8, 8, first=False, last=True)
