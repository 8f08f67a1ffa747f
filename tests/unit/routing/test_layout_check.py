"""What a sender says against what was received: every kind of difference is found, at the first route that has it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from specalign.routing.errors import RoutingError
from specalign.routing.layout import ReceiveLayout
from specalign.routing.layout_check import FINGERPRINT_WIDTH, SentRoutes, check_received

IDS = torch.tensor([[2, -1, 0], [1, 2, -1], [0, 1, 2]])
ROUTES = 7


def received(dtype: torch.dtype = torch.bfloat16) -> tuple[ReceiveLayout, Tensor, SentRoutes]:
    """Three tokens, and a sender who tells the truth, made by a plain loop."""
    generator = torch.Generator().manual_seed(0)
    weights, rows = torch.rand(3, 3, generator=generator), torch.randn(3, 20, generator=generator).to(dtype)
    said = [(IDS[t, s], weights[t, s], rows[t, :FINGERPRINT_WIDTH]) for t in range(3) for s in range(3) if IDS[t, s] >= 0]
    ids, sent_weights, prints = (torch.stack(column) for column in zip(*said, strict=True))
    return ReceiveLayout(IDS, weights, num_experts=3), rows, SentRoutes(ids, sent_weights, prints)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.uint8], ids=str)
def test_the_truth_passes(dtype: torch.dtype) -> None:
    layout, rows, sent = received(dtype)
    check_received(layout, rows, sent)
    check_received(
        layout, rows, dataclasses.replace(sent, expert_ids=sent.expert_ids.int(), fingerprints=sent.fingerprints[:, :1])
    )


def test_no_routes_pass() -> None:
    layout = ReceiveLayout(torch.full((2, 2), -1), torch.zeros(2, 2), num_experts=1)
    check_received(layout, torch.zeros(2, 4), SentRoutes(torch.zeros(0, dtype=torch.int64), torch.zeros(0), torch.zeros(0, 4)))


def changed(name: str, route: int, value: float, column: int | None = None) -> tuple[ReceiveLayout, Tensor, SentRoutes]:
    layout, rows, sent = received()
    tensor = getattr(sent, name).clone()
    tensor[route if column is None else (route, column)] = value
    return layout, rows, dataclasses.replace(sent, **{name: tensor})


def test_another_expert_is_named_with_both_bits() -> None:
    message = r"route \(token 1, slot 1\), number 3 of 7: expert id is 0x0000000000000002 \(2\), the sender says 0x0000000000000001 \(1\); 1 routes"
    with pytest.raises(RoutingError, match=message):
        check_received(*changed("expert_ids", 3, 1))


def test_one_bit_of_a_weight_is_found() -> None:
    layout, rows, sent = received()
    weights = sent.weights.clone()
    weights.view(torch.int32)[5] += 1
    bits = int(sent.weights.view(torch.int32)[5])
    with pytest.raises(RoutingError, match=rf"token 2, slot 1\), number 5 of 7: weight is {bits:#010x} .* says {bits + 1:#010x}"):
        check_received(layout, rows, dataclasses.replace(sent, weights=weights))


def test_the_sign_of_a_zero_weight_is_found() -> None:
    layout = ReceiveLayout(torch.tensor([[0]]), torch.tensor([[0.0]]), num_experts=1)
    sent = SentRoutes(torch.tensor([0]), torch.tensor([-0.0]), torch.ones(1, 1))
    with pytest.raises(RoutingError, match=r"weight is 0x00000000 \(0\.0\), the sender says 0x80000000 \(-0\.0\)"):
        check_received(layout, torch.ones(1, 1), sent)


@pytest.mark.parametrize("column", [0, 15])
def test_one_value_of_a_row_is_found(column: int) -> None:
    with pytest.raises(
        RoutingError, match=rf"token 0, slot 2\), number 1 of 7: row value {column} is 0x[0-9a-f]{{4}} .* 0x4640 \(12288"
    ):
        check_received(*changed("fingerprints", 1, 12288.0, column))


def test_the_same_nan_in_a_row_is_the_same_row() -> None:
    layout, rows, sent = received()
    rows[0, 3] = float("nan")
    sent.fingerprints[:2, 3] = float("nan")  # token 0 has two routes
    check_received(layout, rows, sent)


def test_the_first_bad_route_is_named_and_all_are_counted() -> None:
    layout, rows, sent = received()
    with pytest.raises(RoutingError, match=r"token 0, slot 0\), number 0 of 7: expert id .* 7 routes differ"):
        check_received(layout, rows, SentRoutes(sent.expert_ids + 1, -sent.weights, -sent.fingerprints))
    later = sent.expert_ids.clone()
    later[6] = 0
    weights = sent.weights.clone()
    weights[2] = 9.0
    with pytest.raises(RoutingError, match=r"token 1, slot 0\), number 2 of 7: weight .* \(9\.0\); 2 routes differ"):
        check_received(layout, rows, SentRoutes(later, weights, sent.fingerprints))


def test_tokens_in_another_order_are_found_by_their_rows_alone() -> None:
    ids, weights, rows = torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1), torch.randn(3, 16).bfloat16()
    sent = SentRoutes(ids[:, 0], weights[:, 0], rows)
    layout = ReceiveLayout(ids, weights, num_experts=1)
    check_received(layout, rows, sent)
    with pytest.raises(RoutingError, match="row value 0"):
        check_received(layout, rows.roll(1, 0), sent)


def test_the_number_of_routes_comes_first() -> None:
    layout, rows, sent = received()
    short = SentRoutes(sent.expert_ids[:-1] + 1, sent.weights[:-1], sent.fingerprints[:-1])
    with pytest.raises(RoutingError, match=rf"{ROUTES} routes were received, 6 expert ids were sent"):
        check_received(layout, rows.float(), short)
    with pytest.raises(RoutingError, match=r"7 routes were received, 6 weights were sent"):
        check_received(layout, rows, dataclasses.replace(sent, weights=sent.weights[1:]))


@pytest.mark.parametrize(
    ("rows", "replaced", "message"),
    [
        (torch.zeros(2, 20).bfloat16(), {}, r"rows are \[2, 20\], fingerprints 16 wide: expected \[3, H\]"),
        (torch.zeros(3, 8).bfloat16(), {}, r"rows are \[3, 8\], fingerprints 16 wide"),
        (torch.zeros(3, 20), {}, r"rows are torch\.float32, fingerprints torch\.bfloat16"),
        (None, {"fingerprints": torch.zeros(7, 0).bfloat16()}, r"fingerprints 0 wide"),
        (None, {"weights": torch.zeros(7).bfloat16()}, r"weights torch\.bfloat16: expected"),
        (None, {"weights": torch.zeros(7, 1)}, r"expected \[R\], \[R\] and \[R, f\]"),
        (None, {"weights": torch.zeros(7, device="meta")}, r"are on \['cpu', 'meta'\]"),
    ],
)
def test_what_cannot_be_compared_is_refused(rows: Tensor | None, replaced: dict[str, Tensor], message: str) -> None:
    layout, own, sent = received()
    with pytest.raises(RoutingError, match=message):
        check_received(layout, own if rows is None else rows, dataclasses.replace(sent, **replaced))
