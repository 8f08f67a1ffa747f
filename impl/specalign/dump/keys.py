"""What the tensors of a dump are called, which layer each belongs to, and in which order a forward makes them."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from specalign.dump.errors import DumpError
from specalign.layer_ids.files import quoted

TOKENS: Final = "tokens"
POSITIONS: Final = "positions"
REQUESTS: Final = "requests"
ROW_KIND: Final = "row_kind"

INDEX_DTYPES: Final[Mapping[str, str]] = {TOKENS: "I64", POSITIONS: "I64", REQUESTS: "I32", ROW_KIND: "U8"}
"""The tensors that say which row is what, each `[rows]`, and their element types."""

FINGERPRINT: Final = "fingerprint."
"""Prefix of the key under which the fingerprints of a tensor stand, `[rows, 2]` U64."""

NONFINITE: Final = "nonfinite."
"""Prefix of the key under which the counts of a fingerprinted tensor's non-finite elements stand, `[rows, 2]` U32."""

POST_NORM_KEY: Final = "post_norm"
LOGITS: Final = "logits"
LOGPROBS: Final = "logprobs"
RESIDUAL_FP32: Final = "residual_fp32"
"""Last part of `module.layers.<i>.residual_fp32`: the residual sum behind block i before it is rounded, F32."""

MAY_BE_INFINITE: Final = frozenset({LOGITS, LOGPROBS})
"""Keys in which minus infinity is a legal value: a masked token."""

_LAYER: Final = re.compile(r"(?:^|\.)layers\.(\d{1,6})(?:\.|$)")
_NUMBER: Final = r"(?:0|[1-9]\d{0,5})"
_KEY: Final = re.compile(
    rf"boundary\.(?P<boundary>{_NUMBER})|routes\.(?P<routes>{_NUMBER})|module\.(?P<module>\S+)"
    r"|(?P<plain>post_norm|logits|logprobs)"
)


class RowKind(enum.IntEnum):
    """What a token row is, as `row_kind` says."""

    PREFILL = 0
    DECODE = 1
    PADDING = 2
    HEALTH_CHECK = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """A tensor key, parsed.

    Attributes:
        text: the key as it stands in a file, without the prefix of a fingerprint.
        kind: "boundary", "module", "routes", or the key itself.
        number: the boundary, or the layer (block) that a module or its routes belong to; None where there is none.
        module: the dotted name of a module; "" otherwise.
    """

    text: str
    kind: Literal["boundary", "module", "routes", "post_norm", "logits", "logprobs"]
    number: int | None = None
    module: str = ""

    @property
    def layer(self) -> int | None:
        """The block that made it: boundary b is the work of block b − 1; None for boundary 0 and what lies outside of blocks."""
        if self.kind != "boundary":
            return self.number
        return self.number - 1 if self.number else None

    @property
    def order(self) -> tuple[int, int, str]:
        """Sorts keys in the order in which a forward makes them: what block i does lies between boundaries i and i + 1."""
        match self.kind:
            case "boundary":
                return (2 * (self.number or 0), 0, "")
            case "module" | "routes" if self.number is not None:
                # The unrounded sum is the same moment as the boundary after its block.
                late = self.module.endswith("." + RESIDUAL_FP32)
                return (2 * self.number + 1, 1 if late else 0, self.text)
            case "module":
                return (-1 if "embed" in self.module else _AFTER, 0, self.text)
            case _:
                return (_AFTER, 1 + (POST_NORM_KEY, LOGITS, LOGPROBS).index(self.kind), "")


_AFTER: Final = 10**9


def parse_key(text: str) -> Key:
    """A key out of a file, with or without the prefix of a fingerprint.

    Raises:
        DumpError: no key of the format.
    """
    plain = text.removeprefix(FINGERPRINT)
    match = _KEY.fullmatch(plain)
    if match is None:
        raise DumpError(
            f"{quoted(text)} is no tensor key of a dump; keys are boundary.<b>, post_norm, module.<name>, routes.<layer>,"
            " logits and logprobs"
        )
    if match["boundary"] is not None:
        return Key(plain, "boundary", int(match["boundary"]))
    if match["routes"] is not None:
        return Key(plain, "routes", int(match["routes"]))
    if match["module"] is not None:
        layer = _LAYER.search(match["module"])
        return Key(plain, "module", int(layer[1]) if layer else None, match["module"])
    kind = match["plain"]
    return Key(plain, kind)  # type: ignore[arg-type]  # one of the three that the pattern allows


def boundary_key(boundary: int) -> str:
    """`boundary.<b>`."""
    return f"boundary.{boundary}"


def module_key(name: str, layer: int | None = None) -> str:
    """`module.<name>`; with a layer, each engine's own words before `layers.` are dropped, and the number is the global one.

    `model.layers.3.mlp` of layer 3 and Megatron's `decoder.layers.1.mlp` of global layer 3 both give `module.layers.3.mlp`.
    """
    if layer is None:
        return f"module.{name}"
    rest = _LAYER.split(name, maxsplit=1)[-1] if _LAYER.search(name) else name
    return f"module.layers.{layer}.{rest}" if rest else f"module.layers.{layer}"


def in_order(keys: Iterable[str]) -> list[str]:
    """Keys in the order in which a forward makes them."""
    return sorted(keys, key=lambda text: parse_key(text).order)
