"""TokenOrder: each row of a microbatch gets the routes of the token that it is."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.routing.errors import RoutingError  # noqa: E402
from specalign.routing.replay_order import TokenOrder  # noqa: E402
from specalign.routing.replay_rollout import RolloutRoutes  # noqa: E402
from tests.unit.routing.rollouts import EXPERTS, LAYERS, TOPK, payload, row  # noqa: E402

LENGTHS = (5, 1, 8)
FIRSTS = (0, 40, 80)
"""Where the made-up positions of each sample begin, so that samples differ."""


def samples() -> list[RolloutRoutes]:
    made = []
    for first, length in zip(FIRSTS, LENGTHS, strict=True):
        one = RolloutRoutes(f"r{first}", num_layers=LAYERS, topk=TOPK, num_experts=EXPERTS)
        one.append(payload(first, first + length - 1), tokens=length)
        made.append(one)
    return made


def told(order: TokenOrder, layer: int = 1) -> list[str]:
    """Each row by what its ids must be: `sample.position`, or `-n` for the n-th row without routes."""
    known = {
        f"{number}.{position}": row(first + position, layer)
        for number, (first, length) in enumerate(zip(FIRSTS, LENGTHS, strict=True))
        for position in range(length - 1)
    }
    found = order.routes_in(samples(), layer).tolist()
    names = []
    for ids, source in zip(found, order.source.tolist(), strict=True):
        name = f"-{-1 - source}" if source < 0 else list(known)[source]
        expected = [((-1 - source) * TOPK + slot) % EXPERTS for slot in range(TOPK)] if source < 0 else known[name]
        assert ids == expected, (name, ids, expected)
        names.append(name)
    return names


def test_packed_samples_follow_one_another_and_their_last_tokens_have_no_routes() -> None:
    packed = "0.0 0.1 0.2 0.3 -0 -1 2.0 2.1 2.2 2.3 2.4 2.5 2.6 -2"
    assert told(TokenOrder.packed(LENGTHS)) == packed.split()


def test_every_layer_gets_its_own_routes() -> None:
    order = TokenOrder.packed(LENGTHS)
    for layer in range(LAYERS):
        told(order, layer)
    assert not torch.equal(order.routes_in(samples(), 0), order.routes_in(samples(), 1))


def test_samples_padded_to_a_multiple_and_filled_at_the_end() -> None:
    padded = "0.0 0.1 0.2 0.3 -0 -1 -2 -3 -4 -5 -6 -7 2.0 2.1 2.2 2.3 2.4 2.5 2.6 -8"
    assert told(TokenOrder.packed(LENGTHS, multiple=4)) == padded.split()
    assert told(TokenOrder.packed(LENGTHS).filled(8)) == [
        "0.0",
        "0.1",
        "0.2",
        "0.3",
        "-0",
        "-1",
        *[f"2.{p}" for p in range(7)],
        "-2",
        "-3",
        "-4",
    ]
    assert told(TokenOrder.packed(LENGTHS).filled(7)) == told(TokenOrder.packed(LENGTHS))


def test_a_padded_batch_is_flattened_as_a_tensor_with_the_sequence_first() -> None:
    order = TokenOrder.sequence_first(LENGTHS, 8)
    names = torch.tensor([[100 * number + position for position in range(8)] for number in range(3)])
    flat = names.T.reshape(-1).tolist()  # [s, b] as Megatron's router flattens it
    found = told(order)
    assert len(found) == 24
    for name, value in zip(found, flat, strict=True):
        number, position = divmod(value, 100)
        has = position < LENGTHS[number] - 1
        assert (name == f"{number}.{position}") if has else name.startswith("-")
    assert [name for name in found if name.startswith("-")] == [f"-{at}" for at in range(24 - 11)]


def test_zigzag_chunks_of_all_ranks_are_the_whole_and_each_rank_holds_a_chunk_and_its_mirror() -> None:
    whole = TokenOrder.packed(LENGTHS, multiple=4)
    ranks = [told(whole.zigzag(rank, 2)) for rank in range(2)]
    assert ranks[0] == ["0.0", "0.1", "-2", "-3", "-4", "-7", "2.0", "2.1", "2.6", "-8"]
    assert ranks[1] == ["0.2", "0.3", "-0", "-1", "-5", "-6", "2.2", "2.3", "2.4", "2.5"]
    assert sorted(ranks[0] + ranks[1]) == sorted(told(whole))
    assert told(whole.zigzag(0, 1)) == told(whole)


def test_zigzag_of_a_padded_batch_cuts_the_sequence_not_the_samples() -> None:
    whole = TokenOrder.sequence_first(LENGTHS, 8)
    grid = torch.tensor(whole.source.tolist()).view(8, 3)
    for rank in range(2):
        kept = torch.cat([grid[2 * rank : 2 * rank + 2], grid[6 - 2 * rank : 8 - 2 * rank]])
        assert torch.equal(whole.zigzag(rank, 2).source, kept.flatten())


def test_sequence_parallel_slices_follow_one_another() -> None:
    whole = TokenOrder.packed(LENGTHS).filled(4)
    assert [name for rank in range(4) for name in told(whole.sliced(rank, 4))] == told(whole)


def test_context_then_sequence_parallel() -> None:
    one = TokenOrder.packed(LENGTHS, multiple=4).zigzag(1, 2).filled(4)
    assert told(one)[-2:] == ["-7", "-8"]
    assert told(one.sliced(0, 2)) + told(one.sliced(1, 2)) == told(one)


def test_rows_without_routes_name_distinct_experts_and_load_all_of_them_evenly() -> None:
    order = TokenOrder.packed(LENGTHS).filled(21)
    without = order.routes_in(samples(), 0)[order.source < 0]
    assert all(len(set(ids)) == TOPK for ids in without.tolist())
    load = torch.bincount(without.flatten(), minlength=EXPERTS)
    assert int(load.max() - load.min()) <= 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenOrder.packed([]), "there is at least one, and each has a token"),
        (lambda: TokenOrder.packed([3, 0]), "samples of [3, 0] tokens"),
        (lambda: TokenOrder.sequence_first(LENGTHS, 7), "a sample of 8 tokens in a batch that is 7 wide"),
        (lambda: TokenOrder.packed(LENGTHS).zigzag(0, 2), "sequence 0 has 5 rows, not a multiple of 4"),
        (lambda: TokenOrder.packed(LENGTHS, multiple=4).zigzag(2, 2), "rank 2 is not in [0, 2)"),
        (lambda: TokenOrder.packed(LENGTHS).sliced(0, 4), "14 rows do not split into 4"),
        (lambda: TokenOrder.packed(LENGTHS).sliced(-1, 2), "rank -1 is not in [0, 2)"),
        (lambda: TokenOrder.packed(LENGTHS).routes_in(samples()[:2], 0), "routes of 2 requests for 3 samples"),
        (lambda: TokenOrder.packed((5, 1, 9)).routes_in(samples(), 0), "request r80: routes of 7 positions for 9 tokens"),
    ],
)
def test_what_does_not_fit_is_refused(make: object, message: str) -> None:
    with pytest.raises(RoutingError, match=re.escape(message)):
        make()  # type: ignore[operator]


def test_requests_of_different_models_are_refused() -> None:
    other = RolloutRoutes("other", num_layers=LAYERS, topk=TOPK, num_experts=EXPERTS + 1)
    with pytest.raises(RoutingError, match="requests of different models"):
        TokenOrder.packed(LENGTHS).routes_in([*samples()[:2], other], 0)
