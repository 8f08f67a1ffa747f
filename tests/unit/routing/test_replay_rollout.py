"""RolloutRoutes: the base64 of an answer becomes rows, and nothing that is off by anything does."""

from __future__ import annotations

import base64
import re
import struct

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.routing.errors import RoutingError  # noqa: E402
from specalign.routing.replay_rollout import RolloutRoutes  # noqa: E402
from tests.unit.routing.rollouts import EXPERTS, LAYERS, TOPK, payload, row  # noqa: E402


def routes() -> RolloutRoutes:
    return RolloutRoutes("r7", num_layers=LAYERS, topk=TOPK, num_experts=EXPERTS)


def test_the_rows_of_an_answer_are_those_of_all_tokens_but_the_last() -> None:
    one = routes()
    one.append(payload(0, 8), tokens=9)
    assert one.rows == 8
    for layer in range(LAYERS):
        found = one.layer(layer, tokens=9)
        assert found.dtype == torch.int32
        assert found.tolist() == [row(position, layer) for position in range(8)]


def test_an_aborted_request_goes_on_where_its_first_answer_ended() -> None:
    one = routes()
    one.append(payload(0, 4), tokens=5)
    one.append(payload(4, 4), tokens=5, start=4)  # resumed and aborted before a token came
    one.append(payload(4, 10).encode(), tokens=11, start=4)
    assert one.layer(2, tokens=11).tolist() == [row(position, 2) for position in range(10)]


def test_one_token_has_no_rows() -> None:
    one = routes()
    one.append("", tokens=1)
    assert one.layer(0, tokens=1).shape == (0, TOPK)


@pytest.mark.parametrize(
    ("sent", "tokens", "start", "message"),
    [
        (
            payload(0, 9),
            9,
            0,
            "216 bytes, which is 9 rows; 8 rows (tokens - 1 - start) of 3 layers and 2 int32 slots are 192 (+24)",
        ),
        (
            payload(0, 7),
            9,
            0,
            "168 bytes, which is 7 rows; 8 rows (tokens - 1 - start) of 3 layers and 2 int32 slots are 192 (-24)",
        ),
        (payload(0, 8)[:-4], 9, 0, "189 bytes, no whole number of rows of 24 bytes; 8 rows"),
        ("*" + payload(0, 8), 9, 0, "no base64"),
        (payload(0, 8)[:-1], 9, 0, "no base64"),
        ("é", 9, 0, "no base64"),
        (None, 9, 0, "the answer has none. Start the server with --enable-return-routed-experts"),
        (payload(0, 8), 9, 9, "start is not in [0, 9)"),
        (payload(0, 8), 9, -1, "start is not in [0, 9)"),
        ("", 0, 0, "start is not in [0, 0)"),
    ],
)
def test_an_answer_of_another_form_is_refused_by_how_much_it_is_off(
    sent: str | None, tokens: int, start: int, message: str
) -> None:
    one = routes()
    where = f"request r7, routed_experts from position {start} of {tokens} tokens: "
    with pytest.raises(RoutingError, match=re.escape(where) + ".*" + re.escape(message)):
        one.append(sent, tokens=tokens, start=start)
    assert one.rows == 0


@pytest.mark.parametrize("wrong", [EXPERTS, -1])
def test_an_id_out_of_range_is_named_by_row_layer_and_slot(wrong: int) -> None:
    raw = bytearray(base64.b64decode(payload(0, 8)))
    struct.pack_into("<i", raw, (5 * LAYERS * TOPK + 1 * TOPK + 1) * 4, wrong)
    one = routes()
    with pytest.raises(RoutingError, match=rf"row 5, layer 1, slot 1 names expert {wrong}, outside \[0, 8\); 1 of 48 ids"):
        one.append(base64.b64encode(raw), tokens=9)
    assert one.rows == 0


def test_int64_ids_are_too_long_to_be_taken_for_int32() -> None:
    wide = base64.b64encode(struct.pack(f"<{8 * LAYERS * TOPK}q", *[0] * (8 * LAYERS * TOPK)))
    with pytest.raises(RoutingError, match=r"384 bytes, which is 16 rows; .* are 192 \(\+192\)"):
        routes().append(wide, tokens=9)


def test_rows_that_are_there_are_not_written_over_and_a_gap_is_not_bridged() -> None:
    one = routes()
    one.append(payload(0, 4), tokens=5)
    with pytest.raises(RoutingError, match=r"rows 3 to 3 are there already.*routed_experts_start_len=4, or cut\(3\)"):
        one.append(payload(3, 10), tokens=11, start=3)
    with pytest.raises(RoutingError, match="rows 0 to 3 are there already"):
        one.append(payload(0, 10), tokens=11)
    with pytest.raises(RoutingError, match="rows 4 to 5 are missing"):
        one.append(payload(6, 10), tokens=11, start=6)
    assert one.layer(0, tokens=5).tolist() == [row(position, 0) for position in range(4)]


def test_a_request_that_went_back_is_cut_first() -> None:
    one = routes()
    one.append(payload(100, 104), tokens=5)
    with pytest.raises(RoutingError, match="cannot cut to 5 rows, it has 4"):
        one.cut(5)
    one.cut(2)
    one.append(payload(2, 10), tokens=11, start=2)
    assert one.layer(1, tokens=11).tolist() == [row(position, 1) for position in (100, 101, *range(2, 10))]


def test_routes_of_another_number_of_tokens_are_refused() -> None:
    one = routes()
    one.append(payload(0, 8), tokens=9)
    with pytest.raises(RoutingError, match=r"routes of 8 positions for 10 tokens, which need 9 \(-1\)"):
        one.layer(0, tokens=10)
    with pytest.raises(RoutingError, match=r"routes of 8 positions for 8 tokens, which need 7 \(\+1\)"):
        one.layer(0, tokens=8)
    with pytest.raises(RoutingError, match=r"layer 3 is not in \[0, 3\)"):
        one.layer(3, tokens=9)


def test_the_zeros_of_a_layer_without_experts_are_no_routes() -> None:
    one = routes()
    one.append(base64.b64encode(bytes(2 * LAYERS * TOPK * 4)), tokens=3)
    with pytest.raises(RoutingError, match=r"request r7, layer 1: token 0 names expert 0 in slots \[0, 1\]; 2 of 2 tokens"):
        one.layer(1, tokens=3)


def test_a_layers_routes_are_a_copy() -> None:
    one = routes()
    one.append(payload(0, 8), tokens=9)
    one.layer(0, tokens=9).zero_()
    assert one.layer(0, tokens=9).tolist() == [row(position, 0) for position in range(8)]


@pytest.mark.parametrize("wrong", [{"num_layers": 0}, {"topk": 9}, {"num_experts": 0}])
def test_a_model_of_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(RoutingError, match=r"request r7: .* is no MoE model"):
        RolloutRoutes("r7", **{"num_layers": LAYERS, "topk": TOPK, "num_experts": EXPERTS, **wrong})
