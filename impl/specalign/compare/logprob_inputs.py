"""Log-probs and masks in whatever form an RL framework has them: tensors, arrays, padded batches, lists of samples.

torch tensors are known by their methods, so that torch is not imported here.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

FLOATS: Final = ("bfloat16", "float16", "float32", "float64")
"""The element types of a log-prob; each widens to float64 without loss."""


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """The log-probs of one engine.

    Attributes:
        samples: float64 `[tokens]` for each sample.
        dtype: one of `FLOATS`, the type that they came in; "" if there is no token.
    """

    samples: list[Float64]
    dtype: str

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sample."""
        return [len(sample) for sample in self.samples]

    @property
    def tokens(self) -> Float64:
        """All tokens, sample after sample."""
        return np.concatenate([np.empty(0), *self.samples])


def read_logprobs(value: object, name: str) -> Side:
    """`value` as samples; see `specalign.compare.logprobs.compare_logprobs` for what is taken.

    Raises:
        ValueError: no floating point numbers, more than two axes, or samples of different types. Starts with `name`.
    """
    samples, dtypes = [], set()
    for index, (array, dtype) in enumerate(_samples(value, name)):
        if array.size:
            if dtype not in FLOATS:
                raise ValueError(f"{name}, sample {index}: elements of type {dtype}; log-probs are {', '.join(FLOATS)}")
            dtypes.add(dtype)
        with np.errstate(invalid="ignore"):  # a signalling NaN raises the flag as it widens
            samples.append(array.astype(np.float64))
    if len(dtypes) > 1:
        raise ValueError(f"{name}: samples of different types, {' and '.join(sorted(dtypes))}")
    return Side(samples, "".join(dtypes))


def read_mask(value: object, lengths: list[int]) -> list[Bool]:
    """`value` as one bool array for each sample; None keeps every token.

    Raises:
        ValueError: an element that is neither 0 nor 1, or other lengths than the log-probs have.
    """
    if value is None:
        return [np.ones(length, dtype=np.bool_) for length in lengths]
    masks = []
    for index, (array, dtype) in enumerate(_samples(value, "mask")):
        if array.size and (dtype == "object" or not np.isin(array, (0, 1)).all()):
            raise ValueError(f"mask, sample {index}: an element is neither 0 nor 1 (or False, True)")
        masks.append(array.astype(np.bool_))
    check_lengths(lengths, [len(mask) for mask in masks], "the log-probs", "the mask")
    return masks


def check_lengths(a: list[int], b: list[int], name_a: str, name_b: str) -> None:
    """Refuse two sides that do not have the same samples with the same number of tokens.

    Raises:
        ValueError: names both sides and the first sample that differs.
    """
    if len(a) != len(b):
        raise ValueError(f"{name_a}: {len(a)} samples, {name_b}: {len(b)}")
    for index, (left, right) in enumerate(zip(a, b, strict=True)):
        if left != right:
            raise ValueError(
                f"sample {index}: {left} tokens in {name_a}, {right} in {name_b}; give both the same response tokens"
            )


def _samples(value: Any, name: str) -> list[tuple[npt.NDArray[Any], str]]:
    """Each sample `[tokens]` with the name of its element type."""
    if _is_array(value) and str(value.dtype) != "object":
        array, dtype = _plain(value)
        if array.ndim not in (1, 2):
            raise ValueError(f"{name}: shape {list(array.shape)}; one sample is [tokens], a batch is [samples, tokens]")
        return [(row, dtype) for row in (array if array.ndim == 2 else [array])]
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes):
        raise ValueError(f"{name}: {type(value).__name__} is neither a tensor, an array nor a list")
    if len(value) and all(_is_scalar(item) for item in value):
        return [_plain(value)]
    return [_sample(item, f"{name}, sample {index}") for index, item in enumerate(value)]


def _sample(value: Any, name: str) -> tuple[npt.NDArray[Any], str]:
    """One sample of a list."""
    if not _is_array(value):
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise ValueError(f"{name}: {type(value).__name__} is neither a tensor, an array nor a list")
        if not all(_is_scalar(item) for item in value):
            raise ValueError(f"{name}: holds something that is no number")
    array, dtype = _plain(value)
    if array.ndim != 1:
        raise ValueError(f"{name}: shape {list(array.shape)}; one sample is [tokens]")
    return array, dtype


def _plain(value: Any) -> tuple[npt.NDArray[Any], str]:
    """A tensor, an array or a list of numbers as numpy array, and the name of the element type that it came in."""
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        dtype = str(tensor.dtype).removeprefix("torch.")
        # numpy has no bfloat16; float32 holds each of its values, and float16's.
        return (tensor if dtype == "float64" else tensor.float()).numpy(), dtype
    if isinstance(value, Sequence) and any(hasattr(item, "detach") for item in value):
        parts = [_plain(item) for item in value]
        return np.stack([array for array, _ in parts]), "/".join(sorted({dtype for _, dtype in parts}))
    array = np.asarray(value)
    if isinstance(value, Sequence) and all(type(item) is int for item in value):
        array = array.astype(np.float64)  # [0, -1] are log-probs as good as [0.0, -1.0]; so is []
    return array, array.dtype.name


def _is_array(value: object) -> bool:
    return hasattr(value, "ndim") and hasattr(value, "dtype")


def _is_scalar(value: object) -> bool:
    return isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0
