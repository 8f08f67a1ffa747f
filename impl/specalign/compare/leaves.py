"""The tensors of a result as raw bits: one torch tensor or numpy array, or dicts, lists and tuples of them.

torch is not imported here: who hands over a torch tensor has imported it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from specalign.compare.bits import compare_rows
from specalign.compare.values import NAN_DISTANCE, decode, is_nan, ulp_distance
from specalign.dump.dtypes import BY_TORCH_NAME, DType
from specalign.dump.nonfinite import Raw
from specalign.layer_ids.files import InputError


class NotComparableError(InputError):
    """What was handed over cannot be compared, or comparing it would prove nothing. The message says what to do next."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """One tensor of a result, copied when it was seen unless somebody asked for it as it lies.

    Attributes:
        path: where it stands: `` for a result that is one tensor, `['h'][0]` in a tree.
        dtype: the element type.
        shape: as it was.
        bits: the raw bits in `dtype.raw`, of that shape, C order, on the host; of a copy, nobody else writes to it.
    """

    path: str
    dtype: DType
    shape: tuple[int, ...]
    bits: Raw

    @property
    def kind(self) -> str:
        """`BF16 [4, 8]`."""
        return f"{self.dtype.name} {list(self.shape)}"

    def rows(self, begin: int, end: int) -> Leaf:
        """Some of the rows (the first axis), as a view."""
        part = self.bits[begin:end]
        return Leaf(self.path, self.dtype, part.shape, part)

    def taken(self, order: list[int]) -> Leaf:
        """The rows in another order: row i of the result is row `order[i]`."""
        return Leaf(self.path, self.dtype, self.shape, self.bits[order])


def read_leaves(name: str, value: Any, *, allow_nan: bool = False, copy: bool = True) -> list[Leaf]:
    """Every tensor in a tensor or a tree, in order.

    Args:
        name: of the value, for messages.
        copy: without it, a tensor on the host whose elements lie in order is looked at where it is: for a caller that is done
            with it before anybody may write to it.
        allow_nan: take NaN as bits like any other. Otherwise one is refused: where all is NaN, everything agrees.

    Raises:
        NotComparableError: there is no tensor in it, one has no elements or an element type whose bits are unknown, something in
            it is neither a tensor nor a tree, a tree contains itself, or a NaN.
    """
    leaves = list(_walk(name, "", value, (), copy))
    if not leaves:
        raise NotComparableError(
            f"{name} holds no tensor ({_shown_type(value)}): nothing can be compared; return what you computed"
        )
    for leaf in leaves:
        if leaf.bits.size == 0:
            raise NotComparableError(f"{name}{leaf.path} is {leaf.kind}: it has no elements, so nothing can be compared")
        if not allow_nan:
            _refuse_nan(name, leaf)
    return leaves


def _walk(name: str, path: str, value: Any, above: tuple[int, ...], copy: bool) -> Iterator[Leaf]:
    if id(value) in above:
        raise NotComparableError(f"{name}{path} contains itself")
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(name, f"{path}[{key!r}]", item, (*above, id(value)), copy)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _walk(name, f"{path}[{index}]", item, (*above, id(value)), copy)
    else:
        yield _leaf(name, path, value, copy)


def _leaf(name: str, path: str, value: Any, copy: bool) -> Leaf:
    if isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, np.ma.MaskedArray):
        dtype = _dtype(name, path, value.dtype.name)
        array = np.array(value, order="C") if copy else np.asarray(value, order="C")
        if array.dtype.byteorder == ">":
            array = array.byteswap().view(array.dtype.newbyteorder("<"))
        bits: Raw = array.view(dtype.raw)
        return Leaf(path, dtype, array.shape, bits)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_leaf(torch, name, path, value, copy)
    raise NotComparableError(
        f"{name}{path} is {_shown_type(value)}: only torch tensors and numpy arrays, and dicts, lists and tuples of them, have"
        " bits to compare; leave it out, or make it an array, like numpy.float64(x)"
    )


def _torch_leaf(torch: Any, name: str, path: str, tensor: Any, copy: bool) -> Leaf:
    dtype = _dtype(name, path, str(tensor.dtype).removeprefix("torch."))
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise NotComparableError(
            f"{name}{path} is a tensor of layout {tensor.layout} on {tensor.device}: its bits are not there to compare;"
            " hand over a dense tensor with data"
        )
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.size]
    dense = tensor.detach().resolve_neg().to("cpu", copy=copy).contiguous()
    bits: Raw = dense.view(same_size).numpy().view(dtype.raw)
    return Leaf(path, dtype, tuple(tensor.shape), bits)


def _dtype(name: str, path: str, called: str) -> DType:
    if called not in BY_TORCH_NAME:
        raise NotComparableError(
            f"{name}{path} has elements of {called}, whose bits are unknown here; known are {', '.join(BY_TORCH_NAME)}."
            " View it as one of them, like uint8"
        )
    return BY_TORCH_NAME[called]


def _refuse_nan(name: str, leaf: Leaf) -> None:
    nan = is_nan(leaf.bits, leaf.dtype)
    if nan.any():
        index = [int(part) for part in np.unravel_index(int(nan.argmax()), nan.shape)]
        raise NotComparableError(
            f"{name}{leaf.path} ({leaf.kind}) holds {int(nan.sum())} NaN, the first at {index}: a NaN agrees with itself whatever"
            " was computed. Find out where it comes from, or say allow_nan=True"
        )


def _shown_type(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__qualname__}"


def difference(name: str, a: Leaf, b: Leaf, says_a: str, says_b: str) -> str | None:
    """What differs between two tensors that should have the same bits, in one to two lines; None if nothing does.

    Args:
        name: of the whole result.
        says_a, says_b: the sides in words, like "in run 1".
    """
    where = f"{name}{a.path}"
    if a.dtype != b.dtype:
        return f"{where}: element type {a.dtype.name} {says_a}, {b.dtype.name} {says_b}"
    if a.shape != b.shape:
        return f"{where} ({a.dtype.name}): shape {list(a.shape)} {says_a}, {list(b.shape)} {says_b}"
    width = a.shape[-1] if a.shape else 1
    table_a, table_b = (side.bits.reshape(-1, width) for side in (a, b))
    result = compare_rows(table_a, table_b, a.dtype)
    if result.first is None:
        return None
    row, column = result.first.row, result.first.column
    x, y = (table[row : row + 1, column] for table in (table_a, table_b))
    index = [int(part) for part in np.unravel_index(row * width + column, a.shape)]
    sides = ", ".join(f"{_element(bits, a.dtype)} {says}" for bits, says in ((x, says_a), (y, says_b)))
    return (
        f"{where} ({a.kind}): element {index}: {sides}, {_ulp(int(ulp_distance(x, y, a.dtype)[0]))}\n"
        f"    {result.mismatches} of {result.elements} elements differ, at most {_ulp(result.max_ulp)}"
    )


def differences(name: str, a: list[Leaf], b: list[Leaf], says_a: str, says_b: str) -> list[str]:
    """What differs between two results, one entry a tensor. The tensors must be the same ones in the same order."""
    paths_a, paths_b = [leaf.path for leaf in a], [leaf.path for leaf in b]
    if paths_a != paths_b:
        return [f"{name}: its tensors are {_paths(name, paths_a)} {says_a}, {_paths(name, paths_b)} {says_b}"]
    found = (difference(name, x, y, says_a, says_b) for x, y in zip(a, b, strict=True))
    return [text for text in found if text is not None]


def _element(bits: Raw, dtype: DType) -> str:
    return f"0x{int(bits[0]):0{2 * dtype.size}x} ({float(decode(bits, dtype)[0])!r})"


def _ulp(distance: int) -> str:
    return "a NaN apart" if distance == NAN_DISTANCE else f"{distance} ulp"


def _paths(name: str, paths: list[str]) -> str:
    shown = [f"{name}{path}" for path in paths[:8]] + (["…"] if len(paths) > 8 else [])
    return f"{len(paths)} ({', '.join(shown)})"
