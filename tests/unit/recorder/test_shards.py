"""Fingerprints of a module's shards on two ranks add up to those of the whole rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn  # noqa: E402  # without torch the module is skipped

from specalign.compare.layerwise import compare_dumps  # noqa: E402
from specalign.compare.selection import parse_selection  # noqa: E402
from specalign.dump.fingerprint import fingerprint_rows  # noqa: E402
from specalign.dump.opening import open_dump  # noqa: E402
from specalign.recorder import record_layers  # noqa: E402
from tests.unit.recorder.dumps import Embedded, ids, read_passes  # noqa: E402

RANKS, KEY = 2, "module.layers.0.up"


class Columns(nn.Module):
    """A linear of which each rank keeps its share of the columns."""

    def __init__(self, rank: int | None) -> None:
        super().__init__()
        self.rank, self.weight = rank, nn.Parameter(torch.linspace(-1, 1, 8 * 16).reshape(16, 8))

    def forward(self, hidden: Tensor) -> Tensor:
        whole = hidden @ self.weight.T
        return whole if self.rank is None else whole.chunk(RANKS, dim=-1)[self.rank]


class Block(nn.Module):
    """Leaves the stream as it is; `up` is what is recorded."""

    def __init__(self, rank: int | None) -> None:
        super().__init__()
        self.up = Columns(rank)

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.up(hidden_states)
        return hidden_states + 1


def model(rank: int | None) -> nn.Module:
    torch.manual_seed(0)
    return Embedded([Block(rank)]).bfloat16()


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    for rank in range(RANKS):
        ours = model(rank)
        with record_layers(
            ours,
            tmp_path / "sharded",
            mode="fingerprint",
            modules=["*.up"],
            axes={KEY: "hidden@tp"},
            rank=rank,
            world=RANKS,
            coords=(("tp", rank),),
            layout={"tp": RANKS},
        ):
            ours(ids(2, 5))
    return tmp_path / "sharded"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    ours = model(None)
    with record_layers(ours, tmp_path / "whole", modules=["*.up"], rank=0, world=1):
        ours(ids(2, 5))
    return tmp_path / "whole"


def test_the_sum_over_ranks_is_the_fingerprint_of_the_rows(sharded: Path, whole: Path) -> None:
    parts = [found.raw[KEY].data for found in read_passes(sharded)]
    (full,) = read_passes(whole)
    assert np.array_equal(parts[0] + parts[1], fingerprint_rows(full.raw[KEY].data))


def test_a_comparison_puts_them_together(sharded: Path, whole: Path) -> None:
    report = compare_dumps(open_dump(whole), open_dump(sharded), selection=parse_selection("0"))
    assert report.ok, report.problems
    assert {key.key: key.rows_compared for key in report.keys} == {KEY: 10, "boundary.1": 10}
