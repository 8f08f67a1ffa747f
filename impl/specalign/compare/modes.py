"""How two tensors are compared: on their bits, or within a tolerance that the caller names."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Final, Literal, cast, get_args

from specalign.layer_ids.files import InputError

Kind = Literal["bits", "ulp", "abs", "rel"]
"""What a `Mode` bounds."""

MAX_ULP: Final = 2**64 - 2
"""Largest N of `ulp:N`: one more is the distance of a NaN, which no tolerance may reach."""

_FORMS: Final = 'one of "bits", "ulp:N", "abs:X", "rel:X"'
_STEPS: Final = re.compile(r"[0-9]{1,20}")
_NUMBER: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Mode:
    """One way to compare elements a and b; all four are symmetric in a and b.

    | kind | equal if |
    |---|---|
    | bits | the bits are the same: −0 ≠ +0, a NaN equals only the same NaN |
    | ulp | at most `bound` representable numbers lie from one to the other |
    | abs | abs(a − b) ≤ bound, in the tensor's own unit |
    | rel | abs(a − b) ≤ bound · max(abs(a), abs(b)) |

    Whatever the kind, the same bits are equal. Under a tolerance −0 = +0, and a NaN or an infinity equals nothing but itself.

    Attributes:
        kind: see above.
        bound: 0 for bits; an int from 0 to `MAX_ULP` for ulp; a finite float ≥ 0 for abs and rel.

    Raises:
        InputError: a kind that does not exist, or a bound that the kind cannot have.
    """

    kind: Kind = "bits"
    bound: float = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"comparison mode {self.kind!r}: no such kind; write {_FORMS}")
        number = isinstance(self.bound, int | float) and not isinstance(self.bound, bool)
        if not number or not 0 <= self.bound < math.inf:
            raise InputError(f"comparison mode {self.kind}: the bound {self.bound!r} is not a finite number of at least 0")
        if self.kind == "bits" and self.bound != 0:
            raise InputError(f"comparison mode bits: takes no bound, got {self.bound!r}; write {_FORMS}")
        if self.kind == "ulp" and (not isinstance(self.bound, int) or self.bound > MAX_ULP):
            raise InputError(f"comparison mode ulp: the bound {self.bound!r} is not a whole number from 0 to {MAX_ULP}")
        if self.kind in ("abs", "rel"):
            object.__setattr__(self, "bound", _as_float(self.kind, self.bound))

    @property
    def is_bits(self) -> bool:
        """Whether only the same bits are equal."""
        return self.kind == "bits"

    def __str__(self) -> str:
        """The text that `parse_mode` reads back to the same mode."""
        return self.kind if self.is_bits else f"{self.kind}:{self.bound!r}"


BITS: Final = Mode("bits")
"""The default everywhere: equality of raw bits."""


def parse_mode(text: str) -> Mode:
    """The mode that `text` names: `bits`, `ulp:N` (N in decimal digits), `abs:X` or `rel:X` (X like 0.01 or 1e-5).

    No signs, blanks or underscores. A number too small for float64 becomes 0, which is the stricter reading.

    Raises:
        InputError: anything else; the message quotes `text` and says what is expected.
    """
    kind, colon, bound = text.partition(":")
    if kind not in get_args(Kind) or bool(colon) == (kind == "bits"):
        raise InputError(f"comparison mode {text!r}: expected {_FORMS}")
    if kind == "bits":
        return BITS
    if kind == "ulp":
        return Mode("ulp", _whole_number(text, bound))
    if not _NUMBER.fullmatch(bound) or not math.isfinite(float(bound)):
        raise InputError(f"comparison mode {text!r}: {bound!r} is not a finite number of at least 0, like 0.01 or 1e-5")
    return Mode(cast("Kind", kind), float(bound))


def _whole_number(text: str, bound: str) -> int:
    if not _STEPS.fullmatch(bound) or int(bound) > MAX_ULP:
        raise InputError(f"comparison mode {text!r}: {bound!r} is not a whole number from 0 to {MAX_ULP}")
    return int(bound)


def _as_float(kind: str, bound: float) -> float:
    try:
        return float(bound)
    except OverflowError:
        raise InputError(f"comparison mode {kind}: the bound is larger than any float64") from None
