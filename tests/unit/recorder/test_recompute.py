"""Activation recomputation is not recorded twice, and compared with the first run if that is asked for."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from specalign.recorder import RecordError, record_layers
from tests.unit.recorder.dumps import Block, Embedded, ids, read_passes, same_bits

DEPTH = 3
WHOLE = {
    "reentrant": functools.partial(checkpoint, use_reentrant=True),
    "early stop off": functools.partial(checkpoint, use_reentrant=False, early_stop=False),
}
CHECKPOINTS = {"not reentrant": functools.partial(checkpoint, use_reentrant=False), **WHOLE}


class Drifting(Block):
    """Gives something else the second time it is run on the same batch: one element of one row, by one bit."""

    def __init__(self, at_call: int) -> None:
        super().__init__()
        self.calls, self.at_call = 0, at_call

    def forward(self, hidden_states: Tensor) -> Tensor:
        out = super().forward(hidden_states)
        self.calls += 1
        if self.calls != self.at_call:
            return out
        changed = out.clone()
        with torch.no_grad():
            changed.view(torch.int32)[0, 1, 2] ^= 1
        return changed


class Model(Embedded):
    def __init__(self, around: Any, *, drifting: int = 0) -> None:
        torch.manual_seed(0)
        super().__init__([Block() if place != 1 or not drifting else Drifting(drifting) for place in range(DEPTH)])
        self.around = around

    def forward(self, input_ids: Tensor) -> Tensor:  # type: ignore[override]
        hidden = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden = self.around(layer, hidden)
        return self.norm(hidden)


@pytest.mark.parametrize("around", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_recomputed_block_is_recorded_once(around: Any, tmp_path: Path) -> None:
    model = Model(around)
    with record_layers(model, tmp_path / "d", modules=["*.mlp"]) as recording:
        model(ids()).sum().backward()
    assert recording.stats.recomputed == DEPTH
    assert recording.stats.passes == 1
    plain = Model(lambda layer, hidden: layer(hidden))
    with torch.no_grad(), record_layers(plain, tmp_path / "plain", modules=["*.mlp"]):
        plain(ids())
    (one,), (other,) = read_passes(tmp_path / "d"), read_passes(tmp_path / "plain")
    assert one.keys == other.keys
    assert all(same_bits(one[key], other[key]) for key in one.keys)


@pytest.mark.parametrize("around", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("backwards", ["last first", "first first"])
def test_comparing_finds_nothing_where_nothing_differs(around: Any, backwards: str, tmp_path: Path) -> None:
    model = Model(around)
    with record_layers(model, tmp_path / "d", recompute="compare") as recording:
        losses = [model(ids(seed=seed)).sum() for seed in range(3)]
        for loss in losses if backwards == "first first" else reversed(losses):
            loss.backward()
    assert recording.stats.recomputed == 3 * DEPTH


@pytest.mark.parametrize("around", WHOLE.values(), ids=WHOLE)
def test_comparing_names_the_layer_that_gave_other_bits(around: Any, tmp_path: Path) -> None:
    model = Model(around, drifting=3)  # two forwards, then the first recomputation
    with pytest.raises(RecordError, match=r"(?s)block 1: 1 of 10 rows differ from the first run"):  # noqa: SIM117, PT012
        with record_layers(model, tmp_path / "d", recompute="compare"):
            losses = [model(ids(seed=seed)).sum() for seed in range(2)]
            for loss in losses:
                loss.backward()
    assert len(read_passes(tmp_path / "d")) == 2


def test_comparing_names_a_block_whose_input_was_never_seen(tmp_path: Path) -> None:
    """The block before it was recomputed to something else inside one checkpoint."""
    model = Model(lambda layer, hidden: layer(hidden), drifting=2)

    def forward(input_ids: Tensor) -> Tensor:
        hidden = model.embed_tokens(input_ids)

        def run(start: Tensor) -> Tensor:
            for layer in model.layers:
                start = layer(start)
            return start

        return model.norm(checkpoint(run, hidden, use_reentrant=False, early_stop=False))

    model.forward = forward  # type: ignore[method-assign]
    with pytest.raises(RecordError, match=r"(?s)block 1: 1 of 10 rows.*block 2 was recomputed from an input that none"):  # noqa: SIM117
        with record_layers(model, tmp_path / "d", recompute="compare"):
            model(ids()).sum().backward()


def test_a_recomputation_that_stops_early_cannot_be_compared(tmp_path: Path) -> None:
    class Ends(Block):
        """What its last operation makes is not needed in backward, so that recomputation stops before it."""

        def forward(self, hidden_states: Tensor) -> Tensor:
            return hidden_states + torch.tanh(self.mlp(hidden_states))

    model = Model(CHECKPOINTS["not reentrant"])
    model.layers[0] = Ends()
    with pytest.raises(RecordError, match=r"stopped before the block's end.*early_stop=False"):  # noqa: SIM117
        with record_layers(model, tmp_path / "d", recompute="compare"):
            model(ids()).sum().backward()


def test_forwards_without_gradients_are_not_remembered(tmp_path: Path) -> None:
    model = Model(lambda layer, hidden: layer(hidden))
    with record_layers(model, tmp_path / "d", recompute="compare") as recording:
        with torch.no_grad():
            model(ids())
        (recomputation,) = recording._recomputations
        assert not any(block.first for block in recomputation._blocks.values())
