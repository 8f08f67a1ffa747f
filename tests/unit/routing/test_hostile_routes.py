"""Arguments and positions that are wrong on purpose: one error that says what is wrong, and no row written where it may not be."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.routing import reference  # noqa: E402
from specalign.routing.checks import PENDING, PendingChecks, check_reference, raise_pending  # noqa: E402
from specalign.routing.errors import RoutingError  # noqa: E402
from specalign.routing.faults import NO_FAULT, Checked  # noqa: E402
from specalign.routing.layout import ReceiveLayout  # noqa: E402
from specalign.routing.routes import (  # noqa: E402
    Experts,
    check_route_positions,
    compact_route_positions,
    gather_routes,
    scatter_quantize,
    scatter_routes,
)
from tests.unit.dump.interpreter import run_interpreted  # noqa: E402

TOKENS = torch.arange(1.0, 385.0).view(3, 128)
ROWS = torch.arange(1.0, 769.0).view(6, 128)
PLACE = torch.tensor([[0, 2], [1, -1], [3, 4]])
IDS, COUNTS = torch.tensor([[0, 1], [0, -1], [2, 2]]), torch.tensor([2, 1, 2])


@pytest.fixture(autouse=True)
def nothing_pending() -> Iterator[None]:
    PENDING.clear()
    yield
    PENDING.clear()


def with_fault(token: int, slot: int, row: int) -> Any:
    place = PLACE.clone()
    place[token, slot] = row
    return place


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(
    ("row", "message"), [(99, "position 99 is none of"), (-5, "position -5"), (0, "taken by token 0, slot 0")]
)
def test_a_deferred_fault_moves_no_row_until_it_is_raised(row: int, message: str, dtype: Any) -> None:
    place = with_fault(2, 1, row).to(dtype)
    scattered = scatter_routes(TOKENS, place, 6, check="deferred")
    gathered = gather_routes(ROWS, place, torch.ones(3, 2), check="deferred")
    codes, _ = scatter_quantize(TOKENS, place, 6, check="deferred")
    assert not scattered.any()
    assert not gathered.any()
    assert not codes.view(torch.uint8).any()
    with pytest.raises(RoutingError, match=message) as caught:
        raise_pending()
    assert "token 2, slot 1" in str(caught.value)


def test_the_gradients_of_a_deferred_fault_are_zeros_too() -> None:
    tokens, rows, weights = (side.clone().requires_grad_() for side in (TOKENS, ROWS, torch.ones(3, 2)))
    place = with_fault(0, 0, 77)
    total = scatter_routes(tokens, place, 6, check="deferred").sum()
    (total + gather_routes(rows, place, weights, check="deferred").sum()).backward()
    assert not any(side.grad.any() for side in (tokens, rows, weights))


def test_deferred_positions_without_a_fault_give_what_checked_ones_give() -> None:
    assert torch.equal(scatter_routes(TOKENS, PLACE, 6, check="deferred"), scatter_routes(TOKENS, PLACE, 6))
    weights = torch.rand(3, 2)
    assert torch.equal(gather_routes(ROWS, PLACE, weights, check="deferred"), gather_routes(ROWS, PLACE, weights))
    raise_pending()


def test_what_a_graph_has_not_written_yet_is_no_fault() -> None:
    checks, memory = PendingChecks(), torch.tensor(12345)
    checks.add(memory, lambda fault: RoutingError(f"fault {fault}"), again=True)
    cell = checks._pending[0].fault
    with pytest.raises(RoutingError, match="fault 12345"):
        checks.raise_first()
    cell.copy_(torch.tensor([12345, 999]))  # what a pool of memory happens to hold
    checks.raise_first()
    cell.copy_(torch.tensor([NO_FAULT, ~NO_FAULT]))
    checks.raise_first()
    assert len(checks) == 1


@pytest.mark.parametrize(
    ("experts", "num_rows", "message"),
    [
        (Experts(IDS.float(), COUNTS), 6, r"expert ids: float32 \[3, 2\]"),
        (Experts(IDS > 0, COUNTS), 6, r"expert ids: bool \[3, 2\]"),
        (Experts(IDS, COUNTS.float()), 6, r"counts: float32 \[3\]"),
        (Experts(IDS, COUNTS, 1.5), 6, r"alignment=1\.5"),  # type: ignore[arg-type]
        (Experts(IDS, COUNTS, 0), 6, "alignment=0"),
        (Experts(IDS, COUNTS), -1, "num_rows=-1"),
        (Experts(IDS, COUNTS), 6.0, r"num_rows=6\.0"),
        (Experts(IDS, COUNTS), True, "num_rows=True"),
    ],
)
def test_what_experts_cannot_be_is_refused(experts: Experts, num_rows: Any, message: str) -> None:
    for call in (check_route_positions, lambda place, rows, experts: scatter_routes(TOKENS, place, rows, experts=experts)):
        with pytest.raises(RoutingError, match=message):
            call(PLACE, num_rows, experts=experts)


def test_a_buffer_without_room_for_the_padding_of_its_last_expert_is_a_fault() -> None:
    ids = torch.tensor([[0], [1], [0]])
    layout = ReceiveLayout(ids, torch.ones(3, 1), num_experts=3, alignment=128)
    experts = Experts(ids, layout.counts, 128)
    check_route_positions(layout.positions, 256, experts=experts)
    check_route_positions(layout.positions, 300, experts=experts)
    with pytest.raises(
        RoutingError, match="expert 1 has rows 128 to 255, filled up to a multiple of 128, and there are 255 rows"
    ):
        check_route_positions(layout.positions, 255, experts=experts)
    with pytest.raises(RoutingError, match="token 1, slot 0: position 128 is none of the 128 rows"):
        check_route_positions(layout.positions, 128, experts=experts)


def test_a_count_below_zero_is_named_and_moves_the_rows_of_no_other_expert() -> None:
    place, ids = torch.tensor([[0, 1]]), torch.tensor([[1, 1]])
    with pytest.raises(RoutingError, match="expert 0 is counted -3 times"):
        check_route_positions(place, 6, experts=Experts(ids, torch.tensor([-3, 2])))


@pytest.mark.parametrize(
    ("padding", "message"),
    [
        (torch.tensor([[5]]), r"padding_rows: int64 \[1, 1\]"),
        (torch.tensor([5.0]), r"padding_rows: float32 \[1\]"),
        (torch.arange(6) == 5, r"padding_rows: bool \[6\].*no mask"),
    ],
)
@pytest.mark.parametrize("check", ["sync", "off"])
def test_padding_rows_are_a_list_of_rows(padding: Any, message: str, check: Any) -> None:
    with pytest.raises(RoutingError, match=message):
        scatter_routes(TOKENS, PLACE, 6, padding_rows=padding, check=check)


@pytest.mark.parametrize("count", [True, 5.0, -1])
def test_a_count_of_routes_is_a_whole_number(count: Any) -> None:
    with pytest.raises(RoutingError, match="count="):
        compact_route_positions(PLACE, count)


def test_views_of_any_strides_move_and_weigh_as_their_copies_do() -> None:
    wide, weights = torch.randn(4, 6), torch.rand(2, 3)
    place = torch.tensor([[0, 3], [2, 1], [-1, 4]]).t()  # [2, 3]
    tokens = torch.randn(1, 5).expand(2, 5)
    assert torch.equal(scatter_routes(tokens, place, 5), scatter_routes(tokens.clone(), place.clone(), 5))
    rows, thin = torch.randn(10, 6)[::2], weights[:, :1].expand(2, 3)
    want = gather_routes(rows.clone(), place.contiguous(), thin.clone())
    assert torch.equal(gather_routes(rows, place, thin), want)
    given = (wide[:, ::2].t().contiguous().t()[:, :3])[torch.tensor([0, 1, 2, 3, 0])].requires_grad_()
    gather_routes(given, place, thin).sum(0).expand(3, 3).sum().backward()
    copied = given.detach().clone().requires_grad_()
    gather_routes(copied, place.contiguous(), thin.clone()).sum(0).repeat(3, 1).sum().backward()
    assert torch.equal(given.grad, copied.grad)
    listed = torch.tensor([4, 9, 3, 9])[::2]
    assert not scatter_routes(torch.ones(1, 5), torch.tensor([[0, 1]]), 5, padding_rows=listed, check="off")[[3, 4]].any()


@pytest.mark.parametrize("width", [1, 2, 3, 7, 17, 63, 100, 1025])
def test_the_reference_rounds_once_at_every_width(width: int) -> None:
    """205 · 5237765·2^-54 + 1, which multiply-then-add, and float64 in between, round to 1."""
    rows, weights = torch.ones(4, width), torch.tensor([[1.0, 5237765 * 2.0**-54]]).repeat(2, 1)
    rows[1::2] = 205.0
    assert (reference.gather_reference(rows, torch.arange(4).view(2, 2), weights) == 1.0 + 2.0**-23).all()


# The Triton checks.


def test_the_checks_in_the_interpreter() -> None:
    run_interpreted(Path(__file__), at_least=3)


def broken(rng: random.Random) -> Checked:
    """A layout's positions, counts and rows, with up to two of them changed."""
    tokens, slots, experts, alignment = rng.randint(0, 5), rng.randint(0, 3), rng.randint(1, 4), rng.choice([1, 4, 128])
    ids = torch.tensor([rng.randrange(-1, experts) for _ in range(tokens * slots)], dtype=torch.int64).view(tokens, slots)
    layout = ReceiveLayout(ids, torch.ones(tokens, slots), num_experts=experts, alignment=128 if alignment == 128 else 1)
    place, counts, num_rows = layout.positions.clone(), layout.counts.clone(), layout.num_rows
    for _ in range(rng.randint(0, 2)):
        what = rng.randrange(3)
        if what == 0 and place.numel():
            place[rng.randrange(tokens), rng.randrange(slots)] = rng.choice([-7, -1, 0, 1, 2, num_rows, 2**31 + 5])
        elif what == 1:
            counts[rng.randrange(experts)] += rng.choice([-4, -1, 1, 3, 200])
        else:
            num_rows = max(0, num_rows + rng.choice([-3, -1, 5]))
    return Checked(place, num_rows, ids, counts, Experts(ids, counts, alignment).offsets(), alignment)


@pytest.mark.parametrize("seed", range(4))
def interpreted_kernel_and_reference_find_the_same_fault(seed: int) -> None:
    from specalign.routing.check_kernels import check_triton

    rng, codes = random.Random(seed), set()
    for _ in range(40):
        checked = broken(rng)
        (fault, owners), (wanted, wanted_owners) = check_triton(checked), check_reference(checked)
        assert int(fault) == int(wanted), checked
        assert torch.equal(owners, wanted_owners), checked
        codes.add(int(fault) % 8)
        if int(fault) != NO_FAULT:
            checked.describe(int(fault))
    assert {1, 3, 5, 6, 7} <= codes  # and 7, the last digit of no fault
