"""Reading back what was recorded, and small models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specalign.dump.passes import PassInfo, RawTensor
from specalign.dump.reader import open_specalign
from specalign.dump.rows import Rows

SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True)
class ReadPass:
    """One pass as it lies on disk."""

    info: PassInfo
    rows: Rows
    raw: dict[str, RawTensor]

    def __getitem__(self, key: str) -> Tensor:
        return tensor_of(self.raw[key])

    @property
    def keys(self) -> set[str]:
        return set(self.raw)


def read_passes(path: Path | str) -> list[ReadPass]:
    """Every pass of every rank, by rank, then number."""
    dump = open_specalign(Path(path), partial=True)
    return [ReadPass(info, dump.rows(info), dict(dump.load(info))) for info in dump.infos()]


def only_pass(path: Path | str) -> ReadPass:
    (one,) = read_passes(path)
    return one


def tensor_of(raw: RawTensor) -> Tensor:
    """The tensor with its dtype, or int64 `[rows, 2]` of fingerprints."""
    signed = np.ascontiguousarray(raw.data).view(f"<i{raw.data.itemsize}" if raw.data.itemsize > 1 else "u1")
    tensor = torch.from_numpy(signed.copy())
    return tensor if raw.spec.fingerprint else tensor.view(getattr(torch, raw.dtype.torch))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Equal dtype, shape and bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    kind = SAME_SIZE[one.element_size()]
    return torch.equal(one.detach().contiguous().view(kind), other.detach().contiguous().view(kind))


class Embedded(nn.Module):
    """An embedding in front of blocks that take hidden alone; `[batch, seq]` in, `[batch, seq, width]` out."""

    def __init__(self, blocks: list[nn.Module], *, width: int = 8, vocabulary: int = 64) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)

    def forward(self, input_ids: Tensor, attention_mask: Any = None, position_ids: Any = None, cu_seqlens: Any = None) -> Tensor:
        hidden = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        normed: Tensor = self.norm(hidden)
        return normed


class Block(nn.Module):
    """A block with something inside to record."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.mlp = nn.Linear(width, width)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states + torch.tanh(self.mlp(hidden_states))


class AddsInPlace(nn.Module):
    """Changes the stream of the block before it."""

    def __init__(self, amount: float) -> None:
        super().__init__()
        self.amount = amount

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states.add_(self.amount)


def small(count: int = 3, *, seed: int = 0) -> Embedded:
    torch.manual_seed(seed)
    return Embedded([Block() for _ in range(count)]).eval()


def ids(batch: int = 2, length: int = 5, *, seed: int = 1) -> Tensor:
    return torch.randint(0, 64, (batch, length), generator=torch.Generator().manual_seed(seed))
