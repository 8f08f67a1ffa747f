"""What a plan accepts, what it refuses, and what it hands on."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.capture import CaptureError, CapturePlan
from specalign.layer_ids import POST_NORM, LayerIdError


def tensors(*states: Any, rows: int = 3, width: int = 4, dtype: Any = None) -> dict[Any, Any]:
    return {state: torch.full((rows, width), float(number), dtype=dtype) for number, state in enumerate(states)}


@pytest.mark.parametrize(
    ("states", "says"),
    [
        ([], "empty: a 6-layer target has boundaries 0..6"),
        ([7], "boundary 7 does not exist: a 6-layer target has boundaries 0..6"),
        ([-1], "boundary -1 is negative"),
        ([True], "state True is a bool"),
        ([2.0], "state 2.0 is a float"),
        (["POST_NORM"], "is the state, not its name"),
        ([None], "state None"),
        ({1, 2}, "an ordered list"),
        ("12", "an ordered list"),
        (5, "an ordered list"),
        ([1, 3, 1, POST_NORM, POST_NORM], r"names \[1, POST_NORM\] more than once"),
    ],
)
def test_states_that_the_target_does_not_have_are_refused(states: Any, says: str) -> None:
    with pytest.raises(CaptureError, match=says):
        CapturePlan(states, 6)


@pytest.mark.parametrize("num_layers", [0, -1, True, 2.0, None, "6"])
def test_num_layers_must_be_a_number_of_layers(num_layers: Any) -> None:
    with pytest.raises(CaptureError, match="num_layers"):
        CapturePlan((1,), num_layers)


def test_duplicates_takes_two_words() -> None:
    with pytest.raises(CaptureError, match="duplicates='collapse'"):
        CapturePlan((1,), 6, "collapse")  # type: ignore[arg-type]


def test_a_plan_is_frozen_and_keeps_its_own_copy_of_the_states() -> None:
    states = [5, POST_NORM, 0]
    plan = CapturePlan(states, 6)  # type: ignore[arg-type]
    states.clear()
    assert plan.states == (5, POST_NORM, 0)
    assert plan.wanted == (0, 5, POST_NORM)
    with pytest.raises(AttributeError):
        plan.num_layers = 7  # type: ignore[misc]


def test_integers_of_other_libraries_are_numbers() -> None:
    assert CapturePlan((torch.tensor(2), torch.tensor(6)), 6).states == (2, 6)  # type: ignore[arg-type]


def test_ids_become_states_by_a_rule() -> None:
    plan = CapturePlan.from_ids([24, 30, 36], num_layers=36, rule="as_is_if_max_is_n")
    assert plan.states == (24, 30, 36)
    assert CapturePlan.from_ids(None, num_layers=36, rule="as_is_if_max_is_n").states == (2, 18, 33)
    with pytest.raises(LayerIdError):
        CapturePlan.from_ids([36], num_layers=36, rule="output")


def test_states_are_handed_on_in_the_order_asked_for() -> None:
    captured = tensors(0, 2, 6, POST_NORM)
    low, normed, high, first = CapturePlan((2, POST_NORM, 6, 0), 6).arrange(captured)
    assert (low, normed, high, first) == (captured[2], captured[POST_NORM], captured[6], captured[0])


def test_a_state_named_twice_is_handed_on_twice_without_shared_memory() -> None:
    one, other, again = CapturePlan((4, 1, 4), 6, "keep").arrange(tensors(1, 4))
    again.add_(1)
    assert torch.equal(one, torch.ones(3, 4))
    assert torch.equal(other, torch.zeros(3, 4))


def test_a_missing_state_is_named_and_nothing_is_handed_on() -> None:
    with pytest.raises(CaptureError, match=r"captured 2 of 3 states of \[2, 4, 6\]: \[6\] never arrived"):
        CapturePlan((2, 4, 6), 6).arrange(tensors(2, 4))


def test_a_state_that_nobody_asked_for_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"\[5\] was captured and not asked for"):
        CapturePlan((2, 4), 6).arrange(tensors(2, 4, 5))


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (lambda: torch.zeros(3, 5), "boundary 4 is 5 wide, not 4"),
        (lambda: torch.zeros(2, 4), r"boundary 4 has rows \[2\], not \[3\]"),
        (lambda: torch.zeros(1, 3, 4), r"boundary 4 has rows \[1, 3\], not \[3\]"),
        (lambda: torch.zeros(3, 4, dtype=torch.bfloat16), "boundary 4 is torch.bfloat16, not torch.float32"),
        (lambda: torch.zeros(4), r"boundary 4 has shape \[4\]"),
        (lambda: [1.0], "boundary 4 is a list, not a tensor"),
    ],
)
def test_an_odd_width_row_count_or_dtype_is_refused(odd: Any, says: str) -> None:
    with pytest.raises(CaptureError, match=says):
        CapturePlan((2, 4), 6).arrange({**tensors(2), 4: odd()})


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        ({"width": 8}, "4 wide, not 8"),
        ({"rows": (5,)}, r"rows \[3\], not \[5\]"),
        ({"dtype": "float16"}, "torch.float32, not torch.float16"),
    ],
)
def test_what_the_caller_expects_is_checked_even_of_a_single_state(expected: dict[str, Any], says: str) -> None:
    if "dtype" in expected:
        expected = {"dtype": getattr(torch, expected["dtype"])}
    with pytest.raises(CaptureError, match=says):
        CapturePlan((2,), 6).arrange(tensors(2), **expected)


def test_an_idle_batch_has_empty_states_of_the_right_width_and_dtype() -> None:
    states = CapturePlan((4, 2, POST_NORM), 6).empty(width=2880, dtype=torch.bfloat16, rows=(0,))
    assert [tuple(state.shape) for state in states] == [(0, 2880)] * 3
    assert {state.dtype for state in states} == {torch.bfloat16}
    with pytest.raises(CaptureError, match="is not empty"):
        CapturePlan((4,), 6).empty(width=4, dtype=torch.float32, rows=(2,))
