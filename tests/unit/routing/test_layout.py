"""The receive layout against a plain loop over tokens, slots and experts."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specalign.routing.errors import RoutingError
from specalign.routing.layout import ReceiveLayout

INT64_MAX = torch.iinfo(torch.int64).max


@dataclasses.dataclass
class Looped:
    """The layout by its definition, in lists."""

    positions: list[list[int]]
    counts: list[int]
    offsets: list[int]
    m_indices: list[int]
    routes: list[list[int]]
    padding_rows: list[int]


def looped(ids: list[list[int]], num_experts: int, alignment: int) -> Looped:
    positions = [[-1] * len(row) for row in ids]
    made = Looped(positions, [], [0], [], [], [])
    for expert in range(num_experts):
        row = made.offsets[-1]
        for token, slots in enumerate(ids):
            for slot, wanted in enumerate(slots):
                if wanted == expert:
                    positions[token][slot] = row
                    row += 1
        made.counts.append(row - made.offsets[-1])
        while row % alignment:
            made.padding_rows.append(row)
            row += 1
        made.m_indices.extend([expert] * (row - made.offsets[-1]))
        made.offsets.append(row)
    made.routes = [[t, s] for t, slots in enumerate(ids) for s, expert in enumerate(slots) if 0 <= expert < num_experts]
    return made


def layout(
    ids: list[list[int]], num_experts: int, *, slots: int | None = None, dtype: torch.dtype = torch.int64, **options: int
) -> ReceiveLayout:
    given_ids = torch.tensor(ids, dtype=dtype).reshape(len(ids), len(ids[0]) if slots is None else slots)
    return ReceiveLayout(given_ids, torch.rand(given_ids.shape), num_experts=num_experts, **options)


def agrees(made: ReceiveLayout, wanted: Looped) -> None:
    for name in ("positions", "counts", "offsets", "m_indices", "padding_rows"):
        assert getattr(made, name).tolist() == getattr(wanted, name), name
    assert made.routes.tolist() == wanted.routes
    assert made.routes.shape == (len(wanted.routes), 2)
    assert made.num_rows == wanted.offsets[-1]
    assert made.all_valid == all(position >= 0 for row in wanted.positions for position in row)


@st.composite
def received_ids(draw: st.DrawFn) -> tuple[list[list[int]], int, int]:
    num_experts, slots = draw(st.integers(1, 6)), draw(st.integers(0, 4))
    expert = st.one_of(st.integers(0, num_experts - 1), st.sampled_from([-1, -(2**31), num_experts, 2**31 - 1]))
    rows = draw(st.lists(st.lists(expert, min_size=slots, max_size=slots), max_size=6))
    return rows, num_experts, slots


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("alignment", [1, 128])
@given(case=received_ids())
def test_a_layout_is_that_of_the_plain_loop(alignment: int, dtype: torch.dtype, case: tuple[list[list[int]], int, int]) -> None:
    ids, num_experts, slots = case
    made = layout(ids, num_experts, slots=slots, dtype=dtype, alignment=alignment)
    agrees(made, looped(ids, num_experts, alignment))


@given(case=received_ids())
def test_valid_rows_are_the_same_for_both_alignments(case: tuple[list[list[int]], int, int]) -> None:
    ids, num_experts, slots = case
    close, padded = (layout(ids, num_experts, slots=slots, alignment=alignment) for alignment in (1, 128))
    assert torch.equal(close.routes, padded.routes)
    keep = torch.ones(padded.num_rows, dtype=torch.bool)
    keep[padded.padding_rows] = False
    assert torch.equal(padded.m_indices[keep], close.m_indices)
    moved = keep.cumsum(0) - 1  # the row that a padded row becomes when padding is taken out
    valid = close.positions >= 0
    assert torch.equal(moved[padded.positions[valid]], close.positions[valid])


@pytest.mark.parametrize("alignment", [1, 128])
@pytest.mark.parametrize(
    ("ids", "num_experts"),
    [
        ([[2, 0], [2, 2], [0, -1], [1, 2]], 3),
        ([[0, INT64_MAX], [INT64_MAX, -1], [1, -INT64_MAX - 1]], 2),
        ([[0], [0], [0]], 1),
        ([[3, 3]] * 200, 5),
        ([[-1, 7]], 7),
        ([[i % 3, 2] for i in range(64)], 3),
    ],
    ids=["mixed", "INT64_MAX", "one expert", "all to one", "none valid", "exactly 128"],
)
def test_the_edges_are_those_of_the_plain_loop(ids: list[list[int]], num_experts: int, alignment: int) -> None:
    agrees(layout(ids, num_experts, alignment=alignment), looped(ids, num_experts, alignment))


@pytest.mark.parametrize("alignment", [1, 128])
@pytest.mark.parametrize(("tokens", "slots"), [(0, 4), (5, 0), (0, 0)])
def test_no_routes_give_no_rows(tokens: int, slots: int, alignment: int) -> None:
    made = ReceiveLayout(
        torch.zeros(tokens, slots, dtype=torch.int32), torch.zeros(tokens, slots), num_experts=3, alignment=alignment
    )
    assert made.num_rows == 0
    assert made.all_valid
    assert made.positions.shape == (tokens, slots)
    assert [made.counts.tolist(), made.offsets.tolist()] == [[0] * 3, [0] * 4]
    assert [len(made.m_indices), len(made.routes), len(made.padding_rows)] == [0, 0, 0]


def test_dtypes_are_those_that_kernels_take() -> None:
    made = layout([[1, -1]], 2, dtype=torch.int32)
    assert {
        name: getattr(made, name).dtype for name in ("ids", "positions", "counts", "offsets", "routes", "padding_rows")
    } == dict.fromkeys(("ids", "positions", "counts", "offsets", "routes", "padding_rows"), torch.int64)
    assert made.m_indices.dtype == torch.int32
    assert made.weights.dtype == torch.float32


def test_routes_are_those_of_nonzero() -> None:
    ids = torch.randint(-2, 9, (300, 7), generator=torch.Generator().manual_seed(3))
    made = ReceiveLayout(ids, torch.rand(300, 7), num_experts=8)
    assert torch.equal(made.routes, ((ids >= 0) & (ids < 8)).nonzero())


def test_an_invalid_slot_has_no_weight_whatever_was_given() -> None:
    weights = torch.tensor([[float("nan"), -0.0, 0.25, float("inf")]])
    made = ReceiveLayout(torch.tensor([[-1, 1, 0, 2]]), weights, num_experts=2)
    assert made.weights.view(torch.int32).tolist() == [[0, -(1 << 31), 0x3E800000, 0]]
    assert made.ids.tolist() == [[-1, 1, 0, -1]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_first_weight_that_is_no_number_is_named(bad: float) -> None:
    weights = torch.ones(3, 2)
    weights[0, 1] = weights[1, 1] = weights[2, 0] = bad
    with pytest.raises(RoutingError, match=rf"weights\[1, 1\] = {bad} \(token 1, slot 1; 2 in all\)"):
        ReceiveLayout(torch.tensor([[0, -1], [1, 0], [1, 1]]), weights, num_experts=2)


def test_gradients_reach_the_weights_of_valid_slots_only() -> None:
    weights = torch.ones(2, 2, requires_grad=True)
    ReceiveLayout(torch.tensor([[0, -1], [5, 1]]), weights, num_experts=2).weights.mul(3.0).sum().backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [[3.0, 0.0], [0.0, 3.0]]


def test_a_layout_keeps_its_own_copies_and_does_not_change() -> None:
    ids, weights = torch.tensor([[1, 0]]), torch.ones(1, 2)
    made = ReceiveLayout(ids, weights, num_experts=2)
    ids.zero_()
    weights.zero_()
    assert made.ids.tolist() == [[1, 0]]
    assert made.weights.tolist() == [[1.0, 1.0]]
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.num_rows = 3  # type: ignore[misc]


def test_strides_do_not_matter() -> None:
    ids, weights = torch.randint(0, 4, (3, 5)), torch.rand(3, 5)
    views = ReceiveLayout(ids.t().contiguous().t(), weights.t().contiguous().t(), num_experts=4)
    assert torch.equal(views.positions, ReceiveLayout(ids, weights, num_experts=4).positions)


IDS, WEIGHTS = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("ids", "weights", "options", "message"),
    [
        (IDS.int().short(), WEIGHTS, {"num_experts": 2}, r"expert_ids are int16 \[2, 3\]"),
        (IDS[0], WEIGHTS[0], {"num_experts": 2}, r"expert_ids are int64 \[3\]"),
        (IDS, WEIGHTS[:, :2], {"num_experts": 2}, r"weights are float32 \[2, 2\]: expected float32 \[2, 3\]"),
        (IDS, WEIGHTS.bfloat16(), {"num_experts": 2}, r"weights are bfloat16 \[2, 3\]"),
        (IDS, WEIGHTS.to("meta"), {"num_experts": 2}, r"weights are on meta, expert_ids on cpu"),
        (IDS, WEIGHTS, {"num_experts": 0}, r"num_experts = 0: expected a whole number from 1"),
        (IDS, WEIGHTS, {"num_experts": True}, r"num_experts = True"),
        (IDS, WEIGHTS, {"num_experts": 2**31}, r"num_experts = 2147483648"),
        (IDS, WEIGHTS, {"num_experts": 2, "alignment": 64}, r"alignment = 64: expected one of \[1, 128\]"),
    ],
)
def test_what_is_no_layout_is_refused(ids: Tensor, weights: Tensor, options: dict[str, int], message: str) -> None:
    with pytest.raises(RoutingError, match=message):
        ReceiveLayout(ids, weights, **options)


class Operations(TorchDispatchMode):
    """The names of the operations that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_nothing_but_the_sizes_waits_for_the_device() -> None:
    """The sizes are read by one tolist(), which is no operation; whatever else waits, or has an order of its own, would be one."""
    ids, weights = torch.randint(-1, 5, (9, 4)), torch.rand(9, 4)
    with Operations() as ran:
        ReceiveLayout(ids, weights, num_experts=4, alignment=128)
    waiting = {"_local_scalar_dense", "nonzero", "masked_select", "bincount", "repeat_interleave", "_unique2", "equal"}
    unordered = {"scatter_add", "scatter_add_", "index_add", "index_add_", "index_put_", "histc"}
    assert "sort" in ran.names
    assert not (waiting | unordered) & set(ran.names)
