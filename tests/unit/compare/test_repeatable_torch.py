"""Results and rows of torch are compared by their bits too, in every element type and layout."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.compare.repeatable import (  # noqa: E402
    BitsDifferError,
    NotComparableError,
    assert_batch_invariant,
    assert_order_invariant,
    assert_repeatable,
)
from tests.unit.compare.test_repeatable import ROWS, split_by_rows  # noqa: E402


@pytest.mark.parametrize(
    "name", ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int64", "uint8", "bool"]
)
def test_every_type_of_torch_is_compared_by_its_bits(name: str) -> None:
    dtype = getattr(torch, name)
    one, two = (torch.tensor([[value]]).to(dtype) for value in (1, 0))
    assert_repeatable(lambda: one.clone(), runs=2)
    results = iter([one, two])
    with pytest.raises(BitsDifferError, match=r"element \[0, 0\]"):
        assert_repeatable(lambda: next(results), runs=2)


def test_bf16_is_shown_in_its_bits() -> None:
    results = iter([torch.tensor([1.0, -0.0]).bfloat16(), torch.tensor([1.0, 0.0]).bfloat16()])
    message = "result (BF16 [2]): element [1]: 0x8000 (-0.0) in call 1, 0x0000 (0.0) in call 2, 1 ulp"
    with pytest.raises(BitsDifferError, match=re.escape(message)):
        assert_repeatable(lambda: next(results), runs=2)


def test_views_gradients_and_conjugated_signs_are_read_as_what_they_show() -> None:
    plain = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    results = iter([plain, plain.T.contiguous().T, plain.clone().requires_grad_(), torch.nn.Parameter(plain)])
    assert_repeatable(lambda: next(results), runs=4)
    imaginary = torch.tensor([1 + 2j]).conj().imag  # a view with the negative bit
    assert imaginary.is_neg()
    signs = iter([imaginary, torch.tensor([-2.0])])
    assert_repeatable(lambda: next(signs), runs=2)


@pytest.mark.parametrize("kind", ["sparse", "meta", "complex"])
def test_tensors_without_bits_are_refused(kind: str) -> None:
    made = {
        "sparse": lambda: torch.eye(2).to_sparse(),
        "meta": lambda: torch.ones(2, device="meta"),
        "complex": lambda: torch.ones(2, dtype=torch.complex64),
    }
    with pytest.raises(NotComparableError, match=r"layout|on meta|complex64, whose bits are unknown"):
        assert_repeatable(made[kind])


def test_rows_of_torch_are_split_moved_and_copied() -> None:
    rows = torch.from_numpy(ROWS)
    before = rows.clone()

    def split(part: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(split_by_rows(part.numpy()))

    assert_batch_invariant(lambda part: part.mul_(2).relu_(), rows)
    assert_order_invariant(lambda part: (part.mul_(2), {"a": part}), rows)
    assert torch.equal(rows, before)
    with pytest.raises(BitsDifferError):
        assert_batch_invariant(split, rows)
    with pytest.raises(BitsDifferError):
        assert_order_invariant(lambda part: part - part.cumsum(0), rows)
