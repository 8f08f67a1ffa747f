"""The element types of a dump: names as in safetensors, and how the bits of a floating-point number are laid out.

Tensors are handled as raw bits: numpy has no bfloat16 and no FP8, and a comparison of bits needs neither. Layouts are those of
IEEE 754 for F16, F32 and F64, of the FP8 paper (arXiv 2209.05433) for E4M3 and E5M2, and of ONNX's FNUZ types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final, Literal


@dataclasses.dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    Attributes:
        name: as in a safetensors header.
        torch: the name of the torch dtype.
        raw: numpy's name of the little-endian unsigned integer that holds the bits of one element.
        size: bytes of one element.
        kind: what the bits are.
        exponent, mantissa: bits of each, of a float; 0 otherwise.
        specials: which codes are not finite: "ieee" all with the highest exponent, "nan" the two with all bits set but the
            sign (E4M3FN has no infinity), "negative_zero" the code of −0 (FNUZ), "" none.
    """

    name: str
    torch: str
    raw: str
    size: int
    kind: Literal["float", "int", "uint", "bool"]
    exponent: int = 0
    mantissa: int = 0
    specials: Literal["ieee", "nan", "negative_zero", ""] = ""

    @property
    def is_float(self) -> bool:
        """Whether −0, infinities and NaN may occur."""
        return self.kind == "float"

    @property
    def sign(self) -> int:
        """The code whose only set bit is the highest one."""
        return 1 << (8 * self.size - 1)

    @property
    def first_nonfinite(self) -> int:
        """The smallest non-finite code without a sign, of a type whose non-finite codes are the largest ("ieee" and "nan")."""
        return self.sign - 1 if self.specials == "nan" else ((1 << self.exponent) - 1) << self.mantissa


DTYPES: Final[Mapping[str, DType]] = {
    dtype.name: dtype
    for dtype in (
        DType("BF16", "bfloat16", "<u2", 2, "float", 8, 7, "ieee"),
        DType("F16", "float16", "<u2", 2, "float", 5, 10, "ieee"),
        DType("F32", "float32", "<u4", 4, "float", 8, 23, "ieee"),
        DType("F64", "float64", "<u8", 8, "float", 11, 52, "ieee"),
        DType("F8_E4M3", "float8_e4m3fn", "<u1", 1, "float", 4, 3, "nan"),
        DType("F8_E5M2", "float8_e5m2", "<u1", 1, "float", 5, 2, "ieee"),
        DType("F8_E4M3FNUZ", "float8_e4m3fnuz", "<u1", 1, "float", 4, 3, "negative_zero"),
        DType("F8_E5M2FNUZ", "float8_e5m2fnuz", "<u1", 1, "float", 5, 2, "negative_zero"),
        DType("I64", "int64", "<u8", 8, "int"),
        DType("I32", "int32", "<u4", 4, "int"),
        DType("I16", "int16", "<u2", 2, "int"),
        DType("I8", "int8", "<u1", 1, "int"),
        DType("U64", "uint64", "<u8", 8, "uint"),
        DType("U32", "uint32", "<u4", 4, "uint"),
        DType("U16", "uint16", "<u2", 2, "uint"),
        DType("U8", "uint8", "<u1", 1, "uint"),
        DType("BOOL", "bool", "<u1", 1, "bool"),
    )
}
"""Every element type that a dump may hold, by name."""

BY_TORCH_NAME: Final[Mapping[str, DType]] = {dtype.torch: dtype for dtype in DTYPES.values()}
"""The same by `str(tensor.dtype).removeprefix("torch.")`."""
