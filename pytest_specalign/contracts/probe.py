"""The probe: a model of n blocks whose every boundary is known in closed form.

Boundary b at row t and channel c is `E[token_t, c] + sum over i < b of (A[i, c] + M[i, c])`, where `E` is the embedding, and `A`
and `M` are what the two halves of block i add. All values are integers of at most 256, so they are exact in float32, bfloat16
and float16, whatever the order of the sums; every block adds at least 3 to every element, so no two boundaries share a value at
any row and channel. `POST_NORM` is boundary n times -1/2, which is negative and so none of the boundaries.
"""

from __future__ import annotations

import pytest_specalign.contracts.needs_torch  # noqa: F401  # isort: skip  # fails in one line without torch

import dataclasses
import functools
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor, nn

from specalign.layer_ids import POST_NORM, State

Style: TypeAlias = Literal["plain", "residual"]
InPlace: TypeAlias = Literal["never", "scratch", "running"]
Kind: TypeAlias = Literal["boundary", "post_norm", "hidden", "residual", "stained", "partial", "rows", "unknown"]

VOCABULARY: Final = 16
MAX_LAYERS: Final = 48
"""With more blocks the values leave 0..256 and are no longer exact in bfloat16."""

POST_NORM_FACTOR: Final = -0.5
STAIN: Final = -256
"""What a block adds to its inputs once it has read them, if it uses them as scratch."""


class ProbeError(RuntimeError):
    """Raised by a block that was made to fail."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeLayout:
    """What kind of probe to make.

    Attributes:
        num_layers: n, at most `MAX_LAYERS`.
        style: "plain" blocks map hidden to hidden; "residual" blocks map (hidden, residual) to (hidden, residual), un-summed,
            with residual None before block 0.
        in_place: "never", or "scratch": a block spoils its inputs after reading them, or "running": every block adds to one
            buffer (the stream of plain blocks, the residual of residual blocks).
        tokens: one number 0..15 for each row; empty for an idle batch.
        hidden_size: channels.
        dtype: of the stream.
        device: of the stream.
        fails_at: this block raises `ProbeError`.
    """

    num_layers: int = 8
    style: Style = "plain"
    in_place: InPlace = "never"
    tokens: tuple[int, ...] = (3, 1, 4, 15, 9)
    hidden_size: int = 16
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    fails_at: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.num_layers <= MAX_LAYERS:
            raise ValueError(f"a probe has 1..{MAX_LAYERS} blocks, not {self.num_layers}: more are not exact in bfloat16")
        bad = [token for token in self.tokens if not 0 <= token < VOCABULARY]
        if bad:
            raise ValueError(f"token {bad[0]} is out of range: the probe has tokens 0..{VOCABULARY - 1}")

    def format(self) -> str:
        blocks = "(hidden, residual)" if self.style == "residual" else "hidden"
        spoiled = {"never": "", "scratch": ", inputs used as scratch", "running": ", added in place"}[self.in_place]
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.num_layers} blocks of {blocks}{spoiled}, {dtype}, {len(self.tokens)} rows on {self.device}"


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """What a tensor holds: a state of the probe, or something that a faulty capture takes for one."""

    kind: Kind
    boundary: int = -1
    rank: int = -1

    def format(self) -> str:
        return {
            "boundary": f"boundary {self.boundary}",
            "post_norm": "POST_NORM",
            "hidden": f"boundary {self.boundary} without its residual",
            "residual": f"the residual of boundary {self.boundary} alone",
            "stained": f"boundary {self.boundary} after a later in-place add",
            "partial": f"boundary {self.boundary} with rank {self.rank}'s partial sum only",
            "rows": f"rank {self.rank}'s rows of boundary {self.boundary} only",
            "unknown": "no state of the probe",
        }[self.kind]


UNKNOWN: Final = Value("unknown")


def value_of(state: State) -> Value:
    return Value("post_norm") if state is POST_NORM else Value("boundary", state)


@functools.cache
def embedding_table(hidden_size: int) -> Tensor:
    """`E`, `[16, hidden_size]` float64, values 1..16: rows of different tokens differ in every channel."""
    tokens, channels = torch.arange(VOCABULARY)[:, None], torch.arange(hidden_size)[None]
    return (1 + (5 * tokens + 3 * channels) % 16).double()


@functools.cache
def attention_table(num_layers: int, hidden_size: int) -> Tensor:
    """`A`, `[n, hidden_size]` float64, values 1 and 2."""
    return 1 + _pattern(30011, num_layers, hidden_size)


@functools.cache
def mlp_table(num_layers: int, hidden_size: int) -> Tensor:
    """`M`, `[n, hidden_size]` float64, values 2 and 3."""
    return 2 + _pattern(40503, num_layers, hidden_size)


def _pattern(odd: int, num_layers: int, hidden_size: int) -> Tensor:
    """0 and 1; from 16 channels on, no two rows are equal, since multiples of an odd number differ modulo 2**16."""
    layers, channels = torch.arange(1, num_layers + 1)[:, None], torch.arange(hidden_size)[None]
    return ((layers * odd >> (channels % 16)) & 1).double()


class PlainBlock(nn.Module):
    """`hidden [rows, hidden_size] -> hidden`."""

    def __init__(self, layer: int, layout: ProbeLayout) -> None:
        super().__init__()
        self.layer, self.layout = layer, layout
        self.attention, self.mlp = _halves(layer, layout)

    def forward(self, hidden_states: Tensor) -> Tensor:
        _fail_if_asked(self.layer, self.layout)
        added = self.attention + self.mlp
        if self.layout.in_place == "running":
            return hidden_states.add_(added)
        out = hidden_states + added
        if self.layout.in_place == "scratch":
            hidden_states.add_(STAIN)
        return out


class ResidualBlock(nn.Module):
    """`(hidden, residual) -> (hidden, residual)`, both `[rows, hidden_size]`; boundary = hidden + residual."""

    def __init__(self, layer: int, layout: ProbeLayout) -> None:
        super().__init__()
        self.layer, self.layout = layer, layout
        self.attention, self.mlp = _halves(layer, layout)

    def forward(self, hidden_states: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        _fail_if_asked(self.layer, self.layout)
        running = self.layout.in_place == "running"
        if residual is None:
            stream = hidden_states if running else hidden_states.clone()
        else:
            stream = residual.add_(hidden_states) if running else hidden_states + residual
        if self.layout.in_place == "scratch":
            for given in (hidden_states, residual):
                if given is not None:
                    given.add_(STAIN)
        return torch.zeros_like(stream) + self.mlp, stream.add_(self.attention)


class ScalingNorm(nn.Module):
    """The final norm: `(hidden, residual or None) -> POST_NORM`, the stream times -1/2, as a new tensor."""

    def __init__(self, layout: ProbeLayout) -> None:
        super().__init__()
        self.layout = layout

    def forward(self, hidden_states: Tensor, residual: Tensor | None = None) -> Tensor:
        stream = hidden_states if residual is None else hidden_states + residual
        normed = stream * POST_NORM_FACTOR
        if self.layout.in_place == "scratch":
            hidden_states.add_(STAIN)
        return normed


class ProbeModel(nn.Module):
    """The probe: `embed_tokens`, `layers`, `norm`, and `forward(tokens) -> POST_NORM`.

    Attributes:
        layout: what kind of probe it is.
        tokens: int64 `[rows]`, the input that `capture` must run.
    """

    def __init__(self, layout: ProbeLayout) -> None:
        super().__init__()
        self.layout = layout
        width = layout.hidden_size
        table = embedding_table(width).to(layout.device, layout.dtype)
        self.embed_tokens = nn.Embedding(VOCABULARY, width, _weight=table, _freeze=True)
        block = ResidualBlock if layout.style == "residual" else PlainBlock
        self.layers = nn.ModuleList(block(layer, layout) for layer in range(layout.num_layers))
        self.norm = ScalingNorm(layout)
        self.tokens = torch.tensor(layout.tokens, dtype=torch.int64, device=layout.device)

    @property
    def num_layers(self) -> int:
        return self.layout.num_layers

    @property
    def hidden_size(self) -> int:
        return self.layout.hidden_size

    def forward(self, tokens: Tensor) -> Tensor:
        stream = self.embed_tokens(tokens)
        if self.layout.style == "plain":
            for layer in self.layers:
                stream = layer(stream)
            return self._normed(stream, None)
        residual = None
        for layer in self.layers:
            stream, residual = layer(stream, residual)
        return self._normed(stream, residual)

    def _normed(self, stream: Tensor, residual: Tensor | None) -> Tensor:
        normed: Tensor = self.norm(stream, residual)
        return normed

    def expected(self, state: State) -> Tensor:
        """The state in closed form, `[rows, hidden_size]`, of the probe's dtype and on its device."""
        return self.values()[value_of(state)]

    def values(self) -> Mapping[Value, Tensor]:
        """Every state, and what a faulty capture may take for one. The states come first."""
        exact = self._streams()
        n, dtype, device = self.num_layers, self.layout.dtype, self.layout.device
        found = {Value("boundary", b): exact[b] for b in range(n + 1)}
        found[Value("post_norm")] = exact[n] * POST_NORM_FACTOR
        if self.layout.style == "residual":
            mlp = mlp_table(n, self.hidden_size)
            found |= {Value("hidden", b): mlp[b - 1].expand_as(exact[b]) for b in range(1, n + 1)}
            found |= {Value("residual", b): exact[b] - mlp[b - 1] for b in range(1, n + 1)}
        if self.layout.in_place == "scratch":
            found |= {Value("stained", b): exact[b] + STAIN for b in range(n + 1)}
        return {value: tensor.to(device, dtype) for value, tensor in found.items()}

    def _streams(self) -> list[Tensor]:
        """Boundaries 0..n in float64, from the tables and not from the blocks."""
        n, width = self.num_layers, self.hidden_size
        rows = embedding_table(width)[torch.tensor(self.layout.tokens, dtype=torch.int64)]
        added = (attention_table(n, width) + mlp_table(n, width)).cumsum(0)
        return [rows, *(rows + added[b] for b in range(n))]


def _halves(layer: int, layout: ProbeLayout) -> tuple[nn.Parameter, nn.Parameter]:
    """What block `layer` adds: its rows of `A` and `M`, `[hidden_size]` each."""
    tables = attention_table(layout.num_layers, layout.hidden_size), mlp_table(layout.num_layers, layout.hidden_size)
    attention, mlp = (nn.Parameter(table[layer].to(layout.device, layout.dtype), requires_grad=False) for table in tables)
    return attention, mlp


def _fail_if_asked(layer: int, layout: ProbeLayout) -> None:
    if layer == layout.fails_at:
        raise ProbeError(f"block {layer} was made to fail")
