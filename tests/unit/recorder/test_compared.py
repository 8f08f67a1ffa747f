"""From hooks to verdict: what two differently run models recorded is compared, and a planted difference is found where it is."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.compare.layerwise import compare_dumps
from specalign.compare.result import CompareReport
from specalign.dump.reader import open_specalign
from specalign.integrations.megatron import record_megatron
from specalign.recorder import record_layers
from tests.unit.recorder.dumps import AddsInPlace, Embedded, ids
from tests.unit.recorder.stand_ins import GPTModel
from tests.unit.recorder.test_megatron import arguments

LAYERS = 4
SEEDS = (1, 2, 3)


def compared(a: Path, b: Path) -> CompareReport:
    return compare_dumps(open_specalign(a), open_specalign(b))


def whole_and_chunks() -> tuple[GPTModel, list[GPTModel]]:
    """The same weights in one model and in two virtual-pipeline chunks."""
    torch.manual_seed(0)
    whole = GPTModel(0, LAYERS, LAYERS)
    chunks = [GPTModel(0, 2, LAYERS), GPTModel(2, 4, LAYERS)]
    chunks[0].embedding.load_state_dict(whole.embedding.state_dict())  # type: ignore[union-attr]
    for number, layer in enumerate(whole.decoder.layers):
        chunks[number // 2].decoder.layers[number % 2].load_state_dict(layer.state_dict())
    chunks[1].decoder.final_layernorm.load_state_dict(whole.decoder.final_layernorm.state_dict())
    return whole, chunks


def run_whole(model: GPTModel) -> None:
    with torch.no_grad():
        for seed in reversed(SEEDS):  # in another order than the chunks
            model(*arguments(ids(seed=seed)))


def run_chunks(chunks: list[GPTModel]) -> None:
    with torch.no_grad():
        sent = [chunks[0](*arguments(ids(seed=seed))) for seed in SEEDS]
        for seed, hidden in zip(SEEDS, sent, strict=True):
            chunks[1].received = hidden
            chunks[1](*arguments(ids(seed=seed)))


@pytest.mark.parametrize("mode", ["full", "fingerprint"])
def test_virtual_pipeline_chunks_equal_the_whole_model_each_layer_once(mode: Any, tmp_path: Path) -> None:
    whole, chunks = whole_and_chunks()
    with record_megatron(chunks, tmp_path / "chunks", post_norm=True, mode=mode):
        run_chunks(chunks)
    with record_megatron(whole, tmp_path / "whole", post_norm=True):
        run_whole(whole)
    report = compared(tmp_path / "chunks", tmp_path / "whole")
    assert report.ok, report.format()
    assert len(report.keys) == LAYERS + 2


@pytest.mark.parametrize("mode", ["full", "fingerprint"])
def test_one_changed_bit_is_found_at_its_layer(mode: Any, tmp_path: Path) -> None:
    whole, chunks = whole_and_chunks()
    with torch.no_grad():
        chunks[1].decoder.layers[0].mlp.bias.view(torch.int32)[3] ^= 1 << 20
    with record_megatron(chunks, tmp_path / "chunks", mode=mode):
        run_chunks(chunks)
    with record_megatron(whole, tmp_path / "whole"):
        run_whole(whole)
    report = compared(tmp_path / "chunks", tmp_path / "whole")
    assert not report.ok
    assert report.first is not None
    assert report.first.key == "boundary.3"


def test_a_padded_batch_equals_its_sequences_alone(tmp_path: Path) -> None:
    model = Embedded([AddsInPlace(0.5), AddsInPlace(0.25)])  # element by element: the same bits in any batch
    tokens, mask = ids(2, 6), torch.ones(2, 6, dtype=torch.long)
    mask[1, :2] = 0
    with torch.no_grad(), record_layers(model, tmp_path / "batch"):
        model(tokens, attention_mask=mask)
    with torch.no_grad(), record_layers(model, tmp_path / "alone"):
        model(tokens[1:, 2:])
        model(tokens[:1])
    report = compared(tmp_path / "batch", tmp_path / "alone")
    assert report.ok, report.format()
