"""Raw positions: what is wrong is found at the first token and slot, by the reference and by the kernels, and said when asked for.

The functions `interpreted_…` are run by `test_the_kernels_in_the_interpreter`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor  # noqa: E402

from specalign.routing.blanks import NOBODY  # noqa: E402
from specalign.routing.checks import PENDING, check_reference, raise_pending  # noqa: E402
from specalign.routing.errors import RoutingError  # noqa: E402
from specalign.routing.faults import NO_FAULT, Checked  # noqa: E402
from specalign.routing.routes import (  # noqa: E402
    Experts,
    check_route_positions,
    compact_route_positions,
    gather_routes,
    scatter_quantize,
    scatter_routes,
)
from tests.unit.dump.interpreter import run_interpreted  # noqa: E402

IDS = [[1, 0], [-1, 1], [2, 1], [1, 2]]
COUNTS = [1, 4, 2, 0]
RIGHT = {1: [[1, 0], [-1, 2], [5, 3], [4, 6]], 4: [[4, 0], [-1, 5], [8, 6], [7, 9]]}
ROWS = {1: 7, 4: 12}

FAULTS = {
    "beyond": ([[0, 1], [7, 2]], 7, None, "token 1, slot 0: position 7 is none of the 7 rows"),
    "below -1": ([[0, -2], [9, 9]], 7, None, "token 0, slot 1: position -2 is none of the 7 rows"),
    "far": ([[0, -1], [2**40, 3]], 7, None, f"token 1, slot 0: position {2**40} is none of the 7 rows"),
    "no rows": ([[-1, 0]], 0, None, "token 0, slot 1: position 0 is none of the 0 rows"),
    "twice": ([[3, 1], [-1, 2], [0, 1], [3, 1]], 7, None, "token 2, slot 1: position 1 is taken by token 0, slot 1"),
    "twice in a token": ([[0, 1], [2, 2]], 7, None, "token 1, slot 1: position 2 is taken by token 1, slot 0"),
    "first of several": ([[0, 1], [1, 99], [-7, 0]], 7, None, "token 1, slot 0: position 1 is taken by token 0, slot 1"),
    "swapped": ([[2, 0], [-1, 1], [5, 3], [4, 6]], 7, 1, "token 0, slot 0: position 2 of expert 1 is out of order"),
    "reversed": ([[4, 0], [-1, 3], [5, 2], [1, 6]], 7, 1, "token 0, slot 0: position 4 of expert 1 is out of order"),
    "last two": ([[1, 0], [-1, 2], [6, 3], [4, 5]], 7, 1, "token 2, slot 0: position 6 of expert 2 is out of order"),
    "a hole": ([[1, 0], [-1, 2], [5, -1], [4, 6]], 7, 1, "token 3, slot 0: position 4 of expert 1 is out of order"),
    "of another": ([[1, 0], [-1, 2], [3, 5], [4, 6]], 7, 1, "token 2, slot 0: position 3 is none of the rows of expert 2, 5 to 6"),
    "too few": ([[1, 0], [-1, 2], [5, 3], [4, -1]], 7, 1, "expert 2 has 1 routes, and 2 are counted: row 6 stays empty"),
    "unaligned": (RIGHT[1], 12, 4, "token 0, slot 0: position 1 is none of the rows of expert 1, 4 to 7"),
    "aligned": (RIGHT[4], 12, 1, "token 0, slot 0: position 4 of expert 1 is out of order"),
    "at padding": ([[4, 0], [-1, 5], [8, 6], [7, 10]], 12, 4, "token 3, slot 1: position 10 is none of the rows of expert 2, 8 to 9"),
}  # fmt: skip
OTHER_IDS = {
    "no such expert": ([[1, 0], [-1, 1], [4, 1], [1, 2]], "token 2, slot 0: position 5 is none of the rows of expert 4, of which there are 4"),
    "none of its own": ([[1, 0], [-1, 1], [3, 1], [1, 2]], "token 2, slot 0: position 5 is none of the rows of expert 3, which has none"),
    "no expert": ([[1, 0], [-1, 1], [-1, 1], [1, 2]], "token 2, slot 0: position 5 is none of the rows of expert -1, of which there are 4"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_pending() -> None:
    PENDING.clear()


def experts_of(alignment: int | None, ids: list[list[int]] = IDS, dtype: torch.dtype = torch.int64) -> Experts | None:
    return None if alignment is None else Experts(torch.tensor(ids, dtype=dtype), torch.tensor(COUNTS), alignment)


def checked_of(positions: Tensor, rows: int, experts: Experts | None) -> Checked:
    if experts is None:
        return Checked(positions, rows)
    return Checked(positions, rows, experts.ids, experts.counts, experts.offsets())


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_fault_is_named(name: str) -> None:
    positions, rows, alignment, says = FAULTS[name]
    with pytest.raises(RoutingError, match=says):
        check_route_positions(torch.tensor(positions), rows, experts=experts_of(alignment))


@pytest.mark.parametrize("name", OTHER_IDS)
def test_a_route_of_another_expert_is_named(name: str) -> None:
    ids, says = OTHER_IDS[name]
    with pytest.raises(RoutingError, match=says):
        check_route_positions(torch.tensor(RIGHT[1]), 7, experts=experts_of(1, ids))


@pytest.mark.parametrize("alignment", RIGHT)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_right_positions_pass_and_each_row_has_its_owner(alignment: int, dtype: torch.dtype) -> None:
    positions = torch.tensor(RIGHT[alignment], dtype=dtype)
    owners = check_route_positions(positions, ROWS[alignment], experts=experts_of(alignment, dtype=dtype))
    flat = [row for token in RIGHT[alignment] for row in token]
    wanted = [flat.index(row) if row in flat else NOBODY for row in range(ROWS[alignment])]
    assert (owners.dtype, owners.tolist()) == (torch.int32, wanted)


def test_the_first_fault_is_the_first_in_every_order_of_tokens() -> None:
    """Of many duplicates, the one named is the smallest (token, slot) that does not own its row."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        positions = torch.randint(0, 40, (30, 3), generator=generator)
        flat = positions.flatten().tolist()
        place, row = next((place, row) for place, row in enumerate(flat) if row in flat[:place])
        with pytest.raises(RoutingError, match=f"token {place // 3}, slot {place % 3}: position {row} is taken"):
            check_route_positions(positions, 40)


CALLS = {
    "scatter": lambda place, check: scatter_routes(torch.ones(2, 128), place, 5, check=check),
    "quantize": lambda place, check: scatter_quantize(torch.ones(2, 128), place, 5, check=check)[0],
    "gather": lambda place, check: gather_routes(torch.ones(5, 4), place, torch.ones(2, 2), check=check),
    "positions": lambda place, check: check_route_positions(place, 5, check=check),
}


@pytest.mark.parametrize("place", [[[0, 1], [5, 2]], [[0, 1], [1, 2]], [[0, -9], [2**40, 2]]])
@pytest.mark.parametrize("name", CALLS)
def test_sync_raises_at_once_and_deferred_once_at_the_next_raise_pending(name: str, place: list[list[int]]) -> None:
    positions = torch.tensor(place)
    with pytest.raises(RoutingError) as sync:
        CALLS[name](positions, "sync")
    assert len(PENDING) == 0
    CALLS[name](positions, "deferred")
    CALLS[name](torch.tensor([[0, 1], [2, 3]]), "deferred")
    with pytest.raises(RoutingError) as deferred:
        raise_pending()
    assert str(deferred.value) == str(sync.value)
    raise_pending()


def test_the_first_of_deferred_faults_is_raised_and_the_rest_forgotten() -> None:
    check_route_positions(torch.tensor([[1, 1]]), 5, check="deferred")
    check_route_positions(torch.tensor([[9, 1]]), 5, check="deferred")
    with pytest.raises(RoutingError, match="taken by"):
        raise_pending()
    raise_pending()


def test_a_check_of_a_graph_stays_until_it_is_cleared() -> None:
    PENDING.add(torch.tensor(1), Checked(torch.tensor([[9]]), 3).describe, again=True)
    for _ in range(2):
        with pytest.raises(RoutingError, match="token 0, slot 0: position 9"):
            raise_pending()
    PENDING.clear()
    raise_pending()


def test_off_trusts() -> None:
    twice = torch.tensor([[0, 1], [1, 2]])
    assert check_route_positions(twice, 5, check="off").tolist() == [0, 1, 3, NOBODY, NOBODY]
    result = scatter_routes(torch.ones(2, 4), twice, 5, padding_rows=torch.tensor([3, 4]), check="off")
    assert result.sum(1).tolist() == [4, 4, 4, 0, 0]
    assert len(PENDING) == 0


@pytest.mark.parametrize("count", [0, 2, 4, 9])
def test_a_wrong_count_raises_and_traps_nothing(count: int) -> None:
    positions = torch.tensor([[0, -1], [2, 1]])
    says = f"3 routes exist, and {count} were counted"
    with pytest.raises(RoutingError, match=says):
        compact_route_positions(positions, count)
    assert compact_route_positions(positions, count, check="deferred").shape == (count, 2)
    with pytest.raises(RoutingError, match=says):
        raise_pending()
    fits = compact_route_positions(positions, count, check="off")
    assert torch.equal(fits[:3], (positions >= 0).nonzero()[:count])


def test_a_right_count_gives_nonzero() -> None:
    positions = torch.tensor([[0, -1], [2, 1]])
    assert torch.equal(compact_route_positions(positions, 3), (positions >= 0).nonzero())


ROW, PLACE, WEIGHT = torch.ones(2, 128), torch.tensor([[0, 1], [2, 3]]), torch.ones(2, 2)
NEEDED = torch.tensor([0, 1, 1, 2])
ARGUMENTS = {
    "rows of one dimension": (lambda: scatter_routes(ROW[0], PLACE, 5), r"rows: float32 \[128\]"),
    "rows of float64": (lambda: scatter_routes(ROW.double(), PLACE, 5), r"rows: float64 \[2, 128\]"),
    "rows of integers": (lambda: gather_routes(ROW.long(), PLACE, WEIGHT), r"rows: int64"),
    "positions of floats": (lambda: scatter_routes(ROW, WEIGHT, 5), r"positions: float32 \[2, 2\]"),
    "positions of int16": (lambda: scatter_routes(ROW, PLACE.short(), 5), "positions: int16"),
    "flat positions": (lambda: scatter_routes(ROW, PLACE[0], 5), r"positions: int64 \[2\]"),
    "other tokens": (lambda: scatter_routes(ROW, PLACE[:1], 5), "of 1 tokens, and there are 2 token rows"),
    "too many routes": (lambda: check_route_positions(PLACE[:1, :1].expand(2**30, 2), 5), "2147483648 routes"),
    "negative num_rows": (lambda: scatter_routes(ROW, PLACE, -1), "num_rows=-1"),
    "weights in bf16": (lambda: gather_routes(ROW, PLACE, WEIGHT.bfloat16()), "weights: bfloat16"),
    "weights of another shape": (lambda: gather_routes(ROW, PLACE, WEIGHT[:1]), r"weights: float32 \[1, 2\]"),
    "weights elsewhere": (lambda: gather_routes(ROW, PLACE, WEIGHT.to("meta")), "weights: on meta"),
    "positions elsewhere": (lambda: scatter_routes(ROW, PLACE.to("meta"), 5), "positions: on meta"),
    "padding as a mask": (lambda: scatter_routes(ROW, PLACE, 5, padding_rows=torch.ones(5) > 0, check="off"), "padding_rows: bool"),
    "padding elsewhere": (lambda: scatter_routes(ROW, PLACE, 5, padding_rows=PLACE[0].to("meta")), "padding_rows: on meta"),
    "columns of no group": (lambda: scatter_quantize(ROW[:, :100], PLACE, 5), "100 columns are no multiple of 128"),
    "an unknown mode": (lambda: scatter_routes(ROW, PLACE, 5, check="async"), "check='async': one of 'sync'"),
    "ids of another shape": (lambda: check_route_positions(PLACE, 5, experts=Experts(PLACE[:1], NEEDED)), r"expert ids: int64 \[1, 2\]"),
    "ids of floats": (lambda: check_route_positions(PLACE, 5, experts=Experts(WEIGHT, NEEDED)), "expert ids: float32"),
    "counts of fp32": (lambda: check_route_positions(PLACE, 5, experts=Experts(PLACE, NEEDED.float())), "counts: float32"),
    "alignment of 0": (lambda: check_route_positions(PLACE, 5, experts=Experts(PLACE, NEEDED, 0)), "alignment=0"),
    "a negative count": (lambda: compact_route_positions(PLACE, -1), "count=-1"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_wrong_argument_is_one_clear_error(name: str) -> None:
    call, says = ARGUMENTS[name]
    with pytest.raises(RoutingError, match=says):
        call()


def test_the_kernels_in_the_interpreter() -> None:
    run_interpreted(Path(__file__), at_least=48)


# Below, run in the interpreter.


def both_agree(checked: Checked) -> int:
    from specalign.routing.check_kernels import check_triton

    (fault, owners), (wanted, wanted_owners) = check_triton(checked), check_reference(checked)
    assert (fault.dtype, owners.dtype) == (torch.int64, torch.int32)
    assert int(fault) == int(wanted)
    assert torch.equal(owners, wanted_owners)
    return int(fault)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", FAULTS)
def interpreted_a_fault_is_the_reference_s(name: str, dtype: torch.dtype) -> None:
    positions, rows, alignment, says = FAULTS[name]
    place = torch.tensor(
        [[min(row, 2**31 - 1 if dtype == torch.int32 else row) for row in token] for token in positions], dtype=dtype
    )
    checked = checked_of(place, rows, experts_of(alignment, dtype=dtype))
    fault = both_agree(checked)
    assert fault != NO_FAULT
    assert str(checked.describe(fault)).startswith(says.split(": position")[0])


@pytest.mark.parametrize("name", OTHER_IDS)
def interpreted_a_route_of_another_expert_is_found(name: str) -> None:
    ids, says = OTHER_IDS[name]
    checked = checked_of(torch.tensor(RIGHT[1]), 7, experts_of(1, ids))
    assert says in str(checked.describe(both_agree(checked)))


@pytest.mark.parametrize("alignment", RIGHT)
def interpreted_right_positions_pass(alignment: int) -> None:
    place = torch.tensor(RIGHT[alignment])
    assert both_agree(checked_of(place, ROWS[alignment], experts_of(alignment))) == NO_FAULT


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("rows", [0, 5])
def interpreted_no_routes_are_no_fault(shape: tuple[int, int], rows: int) -> None:
    assert both_agree(Checked(torch.empty(shape, dtype=torch.int64), rows)) == NO_FAULT


@pytest.mark.parametrize("seed", range(6))
def interpreted_random_faults_over_several_programs_agree(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    place = torch.randperm(1500, generator=generator).view(500, 3)
    hurt = torch.randint(0, 500, (3,), generator=generator)
    place[hurt, 1] = torch.randint(-3, 1600, (3,), generator=generator)
    both_agree(Checked(place, 1500))
    ids = torch.randint(-1, 7, (500, 3), generator=generator)
    counts = torch.bincount(ids[ids >= 0], minlength=6)[:6]
    experts = Experts(ids, counts)
    both_agree(checked_of(place, 1500, experts))
