"""Megatron's chunks, with stand-ins of the same names and shapes: chunks side by side, stages apart, wrappers, packed rows."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor

from specalign.integrations.megatron import parallel_place, record_megatron
from specalign.recorder import RecordError, record_layers
from tests.unit.recorder.dumps import ids, only_pass, read_passes, same_bits
from tests.unit.recorder.stand_ins import Float16Module, GPTModel

LAYERS = 4


def chunks() -> list[Float16Module]:
    torch.manual_seed(0)
    return [Float16Module(GPTModel(0, 2, LAYERS)), Float16Module(GPTModel(2, 4, LAYERS))]


def arguments(tokens: Tensor) -> tuple[Tensor, Tensor, None]:
    return tokens, torch.arange(tokens.shape[1]).expand(tokens.shape), None


def run(models: list[Float16Module], seeds: list[int], *, interleaved: bool) -> dict[int, list[Tensor]]:
    """Micro-batches through both chunks: one after the other, or all through the first before the second."""
    truth: dict[int, list[Tensor]] = {}
    sent: dict[int, Tensor] = {}

    def call(chunk: int, seed: int) -> None:
        inner = models[chunk].module
        inner.received = sent.get(seed)
        with torch.no_grad():
            sent[seed] = models[chunk](*arguments(ids(seed=seed)))
            hidden = inner.received if chunk else inner.embedding(ids(seed=seed)).transpose(0, 1)
            truth.setdefault(seed, []).append(hidden)
            for layer in inner.decoder.layers:
                mlp = layer.mlp  # without its hooks
                hidden = hidden + torch.tanh(torch.nn.functional.linear(hidden, mlp.weight, mlp.bias))
                truth[seed].append(hidden)

    order = (
        [(0, seed) for seed in seeds] + [(1, seed) for seed in seeds] if interleaved else [(c, s) for s in seeds for c in (0, 1)]
    )
    for chunk, seed in order:
        call(chunk, seed)
    return truth


@pytest.mark.parametrize("interleaved", [False, True])
def test_chunks_do_not_overwrite_each_other_and_share_their_names(interleaved: bool, tmp_path: Path) -> None:
    models = chunks()
    with record_megatron(models, tmp_path / "d", post_norm=True, modules=["*.mlp"]) as recording:
        truth = run(models, [1, 2, 3], interleaved=interleaved)
    reads = read_passes(tmp_path / "d")
    assert recording.stats.passes == len(reads) == 6
    assert [read.info.number for read in reads] == list(range(6))
    seen: dict[tuple[str, str], int] = {}
    for read in reads:
        seed = next(seed for seed in truth if ids(seed=seed).t().flatten().tolist() == read.rows.tokens.tolist())
        first = read.info.stage == (0, 2)
        assert read.keys >= ({"boundary.0", "boundary.1", "boundary.2"} if first else {"boundary.3", "boundary.4", "post_norm"})
        for key in read.keys - {"post_norm"}:
            for name in read.rows.request_ids:
                seen[name, key] = seen.get((name, key), 0) + 1
        for place, boundary in enumerate([0, 1, 2] if first else [3, 4]):
            expected = truth[seed][boundary if first else boundary + 1]
            assert same_bits(read[f"boundary.{boundary}"], expected.flatten(0, 1)), (place, boundary)
    # Every layer of every sequence exactly once, under one name for both chunks.
    names = {f"pass{k}/{b}" for k in range(3) for b in range(2)}
    keys = {*(f"boundary.{b}" for b in range(LAYERS + 1)), *(f"module.layers.{i}.mlp" for i in range(LAYERS))}
    assert seen == {(name, key): 1 for name in names for key in keys}


def test_a_pipeline_stage_records_what_it_has_of_the_layers_asked_for(tmp_path: Path) -> None:
    model = Float16Module(GPTModel(2, 4, LAYERS))
    model.module.received = torch.randn(5, 2, 8)
    with torch.no_grad(), record_megatron(model, tmp_path / "d", layers=[0, 3]):
        model(*arguments(ids()))
    read = only_pass(tmp_path / "d")
    assert read.keys == {"boundary.4"}
    assert read.info.stage == (2, 4)


def test_packed_sequences_of_megatron(tmp_path: Path) -> None:
    model = Float16Module(GPTModel(0, 2, 2))
    packed = SimpleNamespace(cu_seqlens_q=torch.tensor([0, 2, 5]), cu_seqlens_q_padded=None)
    with torch.no_grad(), record_megatron(model, tmp_path / "d"):
        model(*arguments(ids(1, 6)), packed_seq_params=packed)
    read = only_pass(tmp_path / "d")
    assert read.rows.tokens.tolist() == ids(1, 6).flatten().tolist()
    assert read.rows.requests.tolist() == [0, 0, 1, 1, 1, -1]
    assert same_bits(read["boundary.0"], model.module.embedding(ids(1, 6)[0]))


def test_an_inner_stage_without_tokens_is_told_what_to_pass(tmp_path: Path) -> None:
    model = GPTModel(2, 4, LAYERS)
    model.received = torch.randn(5, 2, 8)
    with pytest.raises(RecordError, match="inner pipeline stages have none"), record_megatron(model, tmp_path / "d"):
        model(None, None, None)  # type: ignore[arg-type]


def state(**sizes: tuple[int, int]) -> ModuleType:
    """A parallel state in which every axis has the given (rank, size)."""
    words = {"tp": "tensor_model_parallel", "pp": "pipeline_model_parallel", "cp": "context_parallel", "dp": "data_parallel"}
    module = ModuleType("megatron.core.parallel_state")
    module.model_parallel_is_initialized = lambda: True  # type: ignore[attr-defined]
    for axis, word in words.items():
        rank, size = sizes.get(axis, (0, 1))
        setattr(module, f"get_{word}_rank", lambda rank=rank: rank)
        setattr(module, f"get_{word}_world_size", lambda size=size: size)
    return module


def test_ranks_come_from_the_parallel_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parallel_place() == {}
    monkeypatch.setitem(__import__("sys").modules, "megatron.core.parallel_state", state(tp=(1, 2), pp=(0, 1)))
    model = GPTModel(0, 2, 2)
    with torch.no_grad(), record_megatron(model, tmp_path / "d", rank=1, world=2):
        model(*arguments(ids()))
    read = only_pass(tmp_path / "d")
    assert dict(read.info.coords) == {"tp": 1}
    assert read.info.rank == 1


def test_sequence_parallel_blocks_hold_a_slice_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "megatron.core.parallel_state", state(tp=(1, 2)))
    model = GPTModel(1, 2, 2)
    model.config.sequence_parallel = True
    model.received = torch.randn(3, 2, 8)  # the second half of six positions of two sequences
    with torch.no_grad(), record_megatron(model, tmp_path / "d", rank=1, world=2):
        model(*arguments(ids(2, 6)))
    read = only_pass(tmp_path / "d")
    spec = read.raw["boundary.2"].spec
    assert (spec.axis, spec.shape) == ("tokens@sp", (6, 8))
    assert len(read.rows) == 12
    assert read.rows.positions.tolist()[6:] == [3, 3, 4, 4, 5, 5]  # of the rows, this rank holds the second half


def test_context_parallel_rows_and_their_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "megatron.core.parallel_state", state(cp=(0, 2)))
    model = GPTModel(0, 2, 2)
    packed = SimpleNamespace(cu_seqlens_q=torch.tensor([0, 8]), cu_seqlens_q_padded=None)
    with torch.no_grad(), record_megatron(model, tmp_path / "d", world=2):
        model(*arguments(ids(1, 4)), packed_seq_params=packed)
    read = only_pass(tmp_path / "d")
    assert read.rows.positions.tolist() == [0, 1, 6, 7]
    assert read.raw["boundary.1"].spec.axis == "tokens@cp:zigzag"
    model.config.sequence_parallel = True
    monkeypatch.setitem(__import__("sys").modules, "megatron.core.parallel_state", state(cp=(0, 2), tp=(0, 2)))
    with pytest.raises(RecordError, match="sequence and context parallelism are both on"):
        record_megatron(model, tmp_path / "e")


REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": ([], "no model chunk"),
    "no config": ([torch.nn.Linear(2, 2)], "has no config with num_layers"),
}


@pytest.mark.parametrize(("models", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_megatron_model_is_refused(models: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=message):
        record_megatron(models, tmp_path / "d")


def test_layers_out_of_order_and_stages_that_overlap_are_refused(tmp_path: Path) -> None:
    model = GPTModel(0, 2, 2)
    model.decoder.layers[1].layer_number = 4
    with pytest.raises(RecordError, match=r"carry the numbers \[1, 4\]"):
        record_megatron(model, tmp_path / "d")
    with pytest.raises(RecordError, match="overlap"):
        record_megatron([GPTModel(0, 2, 4), GPTModel(0, 2, 4)], tmp_path / "d")
    with pytest.raises(RecordError, match="2 models need stages="):
        record_layers([GPTModel(0, 2, 4), GPTModel(2, 4, 4)], tmp_path / "d")
