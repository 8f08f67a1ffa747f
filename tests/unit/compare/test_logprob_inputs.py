"""Log-probs and masks are taken in every form that RL frameworks have, without a bit lost; what does not fit is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from specalign.compare.logprobs import Limits, compare_logprobs

FORMS = {
    "float32 array": lambda rows: np.array(rows, dtype=np.float32),
    "float16 array": lambda rows: np.array(rows, dtype=np.float16),
    "float64 array": lambda rows: np.array(rows),
    "lists": lambda rows: rows,
    "list of arrays": lambda rows: [np.array(row, dtype=np.float32) for row in rows],
    "tuple of tuples": lambda rows: tuple(map(tuple, rows)),
    "float32 tensor": lambda rows: torch.tensor(rows),
    "bfloat16 tensor": lambda rows: torch.tensor(rows, dtype=torch.bfloat16),
    "float64 tensor": lambda rows: torch.tensor(rows, dtype=torch.float64),
    "tensor with a gradient": lambda rows: torch.tensor(rows, requires_grad=True),
    "list of bfloat16 tensors": lambda rows: [torch.tensor(row, dtype=torch.bfloat16) for row in rows],
    "lists of scalar tensors": lambda rows: [[torch.tensor(x, dtype=torch.bfloat16) for x in row] for row in rows],
    "transposed tensor": lambda rows: torch.tensor(rows).T.contiguous().T,
}


@pytest.mark.parametrize("form", FORMS)
def test_log_probs_come_as_what_frameworks_have(form: str) -> None:
    train, rollout = FORMS[form]([[-1.0, -2.0], [-3.0, -4.0]]), FORMS[form]([[-1.0, -2.0], [-3.5, -4.0]])
    report = compare_logprobs(train, rollout)
    assert (report.samples, report.tokens, report.mean_abs, report.identical_bits) == (2, 4, 0.125, 0.75)
    assert report.dtype_train == report.dtype_rollout
    assert report.dtype_train in form or report.dtype_train in ("float32", "float64", "bfloat16")


def test_a_flat_list_is_one_sample() -> None:
    for flat in ([-1.0, -2.0], [-1, 0], np.array([-1.0, -2.0]), torch.tensor([-1.0, -2.0])):
        report = compare_logprobs(flat, flat)
        assert (report.samples, report.tokens) == (1, 2)


def test_one_bit_of_bfloat16_is_seen() -> None:
    train = torch.full((3,), -1.0, dtype=torch.bfloat16)
    rollout = (train.view(torch.int16) + torch.tensor([0, 1, 0], dtype=torch.int16)).view(torch.bfloat16)
    report = compare_logprobs(train, rollout)
    assert (report.identical_bits, report.max_abs) == (2 / 3, 2.0**-7)


def test_float64_tensors_are_not_rounded() -> None:
    train = torch.tensor([-1.0], dtype=torch.float64)
    report = compare_logprobs(train, train - 2.0**-50)
    assert report.max_abs == 2.0**-50
    assert not report.ok


def test_the_zeros_have_other_bits_and_the_same_value() -> None:
    report = compare_logprobs(np.array([0.0], np.float32), np.array([-0.0], np.float32))
    assert (report.identical_bits, report.max_abs, report.ok) == (0.0, 0.0, False)


def test_other_element_types_are_an_error_unless_declared() -> None:
    train = torch.tensor([-1.0, -0.1])
    rollout = [-1.0, -0.1]  # JSON numbers are float64
    with pytest.raises(ValueError, match="train is float32, rollout is float64"):
        compare_logprobs(train, rollout)
    report = compare_logprobs(train, rollout, allow_dtype_mismatch=True, limits=Limits(max_abs=1e-8))
    assert report.ok
    assert (report.identical_bits, report.dtype_train, report.dtype_rollout) == (0.5, "float32", "float64")


@pytest.mark.parametrize(
    ("train", "rollout", "says"),
    [
        ([[-1.0], [-2.0]], [[-1.0]], "train: 2 samples, rollout: 1"),
        ([[-1.0], [-2.0, -3.0]], [[-1.0], [-2.0]], "sample 1: 2 tokens in train, 1 in rollout"),
        (np.zeros((1, 2, 3)), np.zeros((1, 2, 3)), r"train: shape \[1, 2, 3\]"),
        (np.zeros(()), np.zeros(()), r"train: shape \[\]"),
        (np.zeros(3, np.int64), np.zeros(3, np.int64), "train, sample 0: elements of type int64"),
        (torch.zeros(3, dtype=torch.int32), torch.zeros(3), "train, sample 0: elements of type int32"),
        ([None, -1.0], [-1.0, -1.0], "train, sample 0: NoneType"),
        ([[None, -1.0]], [[-1.0, -1.0]], "train, sample 0: holds something that is no number"),
        ("abc", "abc", "train: str"),
        ([np.zeros((2, 2))], [np.zeros((2, 2))], r"train, sample 0: shape \[2, 2\]"),
        ([np.zeros(1), np.zeros(1, np.float32)], [[0.0], [0.0]], "train: samples of different types, float32 and float64"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(train: Any, rollout: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        compare_logprobs(train, rollout)


def test_a_mask_of_other_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="sample 0: 2 tokens in the log-probs, 1 in the mask"):
        compare_logprobs([-1.0, -2.0], [-1.0, -2.0], mask=[1])


@pytest.mark.parametrize("kind", [np.array, torch.tensor, lambda rows: [torch.tensor(row) for row in rows], list])
@pytest.mark.parametrize("one", [1, True, 1.0])
def test_masks_come_as_what_frameworks_have(kind: Any, one: Any) -> None:
    zero = type(one)(0)
    report = compare_logprobs([[-1.0, -1.0]], [[-1.0, -2.0]], mask=kind([[one, zero]]))
    assert (report.tokens, report.ok) == (1, True)


@pytest.mark.parametrize("bad", [2, -1, 0.5, math.nan, None, "1"])
def test_a_mask_of_anything_but_zero_and_one_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="mask"):
        compare_logprobs([-1.0, -1.0], [-1.0, -1.0], mask=[1, bad])
