"""On a GPU the checks find what cuBLAS does to a row when the batch grows, and let pass what has no reason to change."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pytest_specalign.bitwise import Observer  # noqa: E402
from pytest_specalign.determinism import Determinism  # noqa: E402
from specalign.compare.repeatable import (  # noqa: E402
    BitsDifferError,
    assert_batch_invariant,
    assert_order_invariant,
    assert_repeatable,
)

ROWS, WIDTH, OUT = 1024, 4096, 4096
SIZES = [1, 2, 8, 16, 64, 128, 256, 512]


@pytest.fixture
def rows(deterministic: Determinism) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)


@pytest.fixture
def weight(deterministic: Determinism) -> torch.Tensor:
    return torch.randn(WIDTH, OUT, device="cuda", dtype=torch.bfloat16)


def test_cublas_gives_a_row_other_bits_in_a_smaller_batch(rows: torch.Tensor, weight: torch.Tensor) -> None:
    """The negative control: with few rows cuBLAS takes another kernel, or splits the sum over the width."""
    with pytest.raises(BitsDifferError, match=r"assert_batch_invariant: rows 0:\d+ as a batch of \d+ have other bits"):
        assert_batch_invariant(lambda part: torch.mm(part, weight), rows, sizes=SIZES)


def test_cublas_repeats_itself_for_one_shape(rows: torch.Tensor, weight: torch.Tensor) -> None:
    assert_repeatable(lambda: torch.mm(rows, weight), runs=5)


def test_element_by_element_nothing_changes(rows: torch.Tensor) -> None:
    """The positive control."""

    def gate(part: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"gated": part * 0.5 + 1, "clamped": part.clamp(min=0), "wide": part.float() * 3}

    assert_repeatable(lambda: gate(rows))
    assert_batch_invariant(gate, rows, sizes=SIZES)
    assert_order_invariant(gate, rows)


def test_a_row_that_depends_on_the_one_before_is_found(rows: torch.Tensor) -> None:
    with pytest.raises(BitsDifferError):
        assert_order_invariant(lambda part: part + part.roll(1, 0), rows)


@pytest.mark.bitwise(runs=3)
def test_each_run_draws_the_same_on_the_gpu(deterministic: Determinism, bitwise: Observer, weight: torch.Tensor) -> None:
    noise = torch.randn(8, WIDTH, device="cuda").bfloat16()
    bitwise.observe("noise", noise)
    bitwise.observe("product", torch.mm(noise, weight))


def test_float32_products_are_float32(deterministic: Determinism) -> None:
    """TF32 keeps 10 bits of 1 + 2^-12, which are those of 1; float32 keeps them all."""
    one = torch.full((128, 128), 1 + 2.0**-12, device="cuda")
    product = torch.mm(one, torch.eye(128, device="cuda"))
    assert torch.equal(product, one)


def test_an_operation_without_a_deterministic_version_raises(deterministic: Determinism) -> None:
    """Two writes to one place: which comes last is chance."""
    with pytest.raises(RuntimeError, match="deterministic"):
        torch.zeros(2, device="cuda").put_(torch.tensor([0, 0], device="cuda"), torch.ones(2, device="cuda"))
