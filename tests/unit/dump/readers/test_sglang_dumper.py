"""SGLang's dumper: the real files of a toy module, and files by the same rules with tokens beside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from specalign.dump.keys import RowKind
from specalign.dump.readers import open_foreign
from specalign.dump.readers.sglang_dumper import open_dumper
from tests.unit.dump.readers.foreign import (
    DATA,
    DUMPER,
    assert_bits,
    engine_sum,
    load_all,
    noise,
    plain_rows,
    real,
    refused,
    save,
)

GIVEN = {0: plain_rows(4), 1: plain_rows(4)}


class Writer:
    """Names and contents as `dumper._dump_single` makes them."""

    def __init__(self, folder: Path, rank: int = 0, **meta: object) -> None:
        self.folder, self.rank, self.meta, self.step, self.index = folder, rank, meta, 0, 0

    def dump(self, name: str, value: object, recompute: str = "disabled", **tags: object) -> Path:
        self.index += 1
        full = {
            "step": self.step,
            "rank": self.rank,
            "dump_index": self.index,
            "name": name,
            "recompute_status": recompute,
            **tags,
        }
        file = "___".join(f"{tag}={content}" for tag, content in full.items()) + ".pt"
        return save(self.folder / file, {"value": value, "meta": {**full, "world_rank": self.rank, **self.meta}})

    def lose(self, name: str) -> None:
        """SGLang logs that the tensor could not be saved and goes on."""
        self.dump(name, torch.zeros(1)).unlink()

    def sglang_core(self, tokens: list[int], positions: list[int], lengths: list[int], rids: list[str] | None = None) -> None:
        for name, value in (("input_ids", tokens), ("positions", positions), ("seq_lens", lengths)):
            self.dump(name, torch.tensor(value))
        if rids is not None:
            self.dump("rids", rids)


# The real files


def test_the_real_files_with_the_rows_that_the_caller_knows() -> None:
    dump = open_foreign(DUMPER, rows=GIVEN)
    assert [(info.number, info.rows, sorted(info.tensors)) for info in dump.infos()] == [
        (step, 4, [f"module.layers.{layer}.layer_out__hidden_states" for layer in range(2)]) for step in range(2)
    ]
    for step, tensors in enumerate(load_all(dump)):
        for layer in range(2):
            file = next(DUMPER.glob(f"step={step}___*layer_id={layer}.pt"))
            assert_bits(tensors[f"module.layers.{layer}.layer_out__hidden_states"], real(file)["value"])
    assert dump.rows(dump.infos()[1]).tokens.tolist() == [100, 101, 102, 103]
    assert dump.notes == ()


def test_the_folder_above_one_experiment_is_taken_for_it(tmp_path: Path) -> None:
    assert len(open_foreign(DATA / "dumper", rows=GIVEN).infos()) == 2
    for name in ("a", "b"):
        shutil.copytree(DUMPER, tmp_path / name)
    assert "several experiments: a, b; open one" in refused(open_foreign, tmp_path, rows=GIVEN)


def test_without_tokens_the_fields_to_dump_are_named() -> None:
    message = refused(open_foreign, DUMPER)
    assert "input_ids, positions, seq_lens and rids of SGLang" in message
    assert "cu_seqlens_q of Megatron" in message


def test_a_skipped_tensor_shows_as_missing(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(DUMPER, tmp_path / "toy"))
    next(copy.glob("*dump_index=3___*")).unlink()
    dump = open_foreign(copy, rows=GIVEN)
    assert [len(info.tensors) for info in dump.infos()] == [2, 1]
    assert "rank 0: 1 tensors were never saved (dump_index 3)" in dump.notes[0]


# Files with tokens


def test_sglang_s_core_fields_give_the_rows(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    value = noise(5, 8)
    writer.sglang_core([5, 6, 7, 9, 8], [0, 1, 2, 0, 1], [3, 2], ["HEALTH_CHECK_1", "b"])
    writer.dump("hidden", value, layer_id=3)
    writer.step += 1
    writer.sglang_core([4], [2], [3], ["b"])
    writer.dump("hidden", noise(1, 8), layer_id=3)
    dump = open_foreign(tmp_path)
    first, second = (dump.rows(info) for info in dump.infos())
    assert first.request_ids == ("HEALTH_CHECK_1", "b")
    assert first.kinds.tolist() == [RowKind.HEALTH_CHECK] * 3 + [RowKind.PREFILL] * 2
    assert second.kinds.tolist() == [RowKind.DECODE]
    assert_bits(load_all(dump)[0]["module.layers.3.hidden"], value)
    assert dump.notes == ()


def test_without_rids_the_requests_are_worked_out(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.sglang_core([5, 6, 7], [0, 1, 2], [3])
    writer.dump("hidden", noise(3, 8))
    writer.step += 1
    writer.sglang_core([4], [3], [4])
    writer.dump("hidden", noise(1, 8))
    dump = open_foreign(tmp_path)
    assert [dump.rows(info).request_ids for info in dump.infos()] == [("request-0",)] * 2


@pytest.mark.parametrize("lost", ["input_ids", "positions"])
def test_a_core_field_that_was_skipped_is_no_guess(tmp_path: Path, lost: str) -> None:
    writer = Writer(tmp_path)
    writer.sglang_core([5, 6], [0, 1], [2], ["a"])
    next(tmp_path.glob(f"*name={lost}___*")).unlink()
    writer.dump("hidden", noise(2, 8))
    assert "does not say which tokens" in refused(open_foreign, tmp_path)


def test_core_fields_of_several_modules_must_agree(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.sglang_core([5, 6], [0, 1], [2], ["a"])
    writer.dump("positions", torch.tensor([0, 1]), layer_id=0)
    writer.dump("hidden", noise(2, 8))
    assert open_foreign(tmp_path).infos()[0].rows == 2
    writer.dump("positions", torch.tensor([0, 2]), layer_id=1)
    assert "positions of layer 1 was dumped twice" in refused(open_foreign, tmp_path)


def test_megatron_s_core_fields_give_packed_rows(tmp_path: Path) -> None:
    writer = Writer(tmp_path, megatron_parallel_info={"tp_rank": 1, "tp_size": 2, "pp_rank": 0, "pp_size": 1})
    writer.dump("input_ids", torch.tensor([[5, 6, 7, 8, 0, 0]]))
    writer.dump("position_ids", torch.tensor([[0, 1, 0, 1, 0, 1]]))
    writer.dump("cu_seqlens_q", torch.tensor([0, 2, 4, 6], dtype=torch.int32))
    writer.dump("qkv_format", "thd")
    value = noise(6, 1, 8)
    writer.dump("hidden", value, layer_id=0)
    dump = open_foreign(tmp_path)
    info = dump.infos()[0]
    assert info.coords == (("tp", 1),)
    assert dump.rows(info).request_ids == ("0/0/0", "0/0/1")
    assert dump.rows(info).kinds.tolist() == [RowKind.PREFILL] * 4 + [RowKind.PADDING] * 2
    assert_bits(dump.load(info)["module.layers.0.hidden"], value[:, 0])


def test_what_its_own_hooks_dump_gives_boundaries(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.sglang_core([5, 6], [0, 1], [2], ["a"])
    embedded, delta, residual, normed = (noise(2, 8, seed=i) for i in range(4))
    writer.dump("non_intrusive__model.embed_tokens.output", embedded)
    writer.dump("non_intrusive__model.layers.0.inputs.1", embedded, layer_id=0)
    writer.dump("non_intrusive__model.layers.0.output.0", delta, layer_id=0)
    writer.dump("non_intrusive__model.layers.0.output.1", residual, layer_id=0)
    assert writer.index == 8  # the norm's parts get dump_index 9 and 10, and names sort 10 before 9
    writer.dump("non_intrusive__model.norm.output.0", normed)
    writer.dump("non_intrusive__model.norm.output.1", engine_sum(delta, residual))
    dump = open_foreign(tmp_path)
    tensors = load_all(dump)[0]
    assert_bits(tensors["boundary.0"], embedded)
    assert_bits(tensors["boundary.1"], engine_sum(delta, residual))
    assert_bits(tensors["post_norm"], normed)
    assert "module.layers.0.non_intrusive__model.layers.0.inputs.1" in tensors


def test_gradients_recomputed_tensors_and_other_values_are_left_out_with_a_note(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.sglang_core([5, 6], [0, 1], [2], ["a"])
    first = noise(2, 8)
    writer.dump("hidden", first, "original", layer_id=0)
    writer.dump("hidden", noise(2, 8, seed=3), "recompute", layer_id=0)
    writer.dump("grad__hidden", noise(2, 8), layer_id=0)
    writer.dump("lr", 0.1)
    writer.dump("loss", torch.tensor(1.0))
    dump = open_foreign(tmp_path)
    assert_bits(load_all(dump)[0]["module.layers.0.hidden"], first)
    assert len(dump.infos()[0].tensors) == 1
    assert dump.notes == (
        "tensors of a recomputed forward are left out: those of the first stand for them (tensors: 1)",
        "gradients are left out (tensors: 1)",
        "lr is left out: it holds no tensor (passes: 1)",
        "module.loss is left out: not one row for each token (passes: 1)",
    )


def test_further_tags_tell_tensors_apart(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.sglang_core([5, 6], [0, 1], [2], ["a"])
    for expert in range(2):
        writer.dump("h", noise(2, 8, seed=expert), layer_id=1, expert=expert, tp_rank=0)
    assert set(open_foreign(tmp_path).infos()[0].tensors) == {"module.layers.1.h.expert=0", "module.layers.1.h.expert=1"}


def test_two_forwards_in_one_step_are_refused(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.sglang_core([5, 6], [0, 1], [2], ["a"])
    writer.dump("hidden", noise(2, 8), layer_id=0)
    writer.dump("hidden", noise(2, 8), layer_id=0, recompute="disabled")
    message = refused(open_foreign, tmp_path)
    assert "hidden of layer 0 was dumped twice (dump_index 5 and 6)" in message
    assert "dumper.step()" in message


def test_several_ranks_are_told_apart(tmp_path: Path) -> None:
    for rank in range(2):
        writer = Writer(tmp_path, rank, sglang_parallel_info={"tp_rank": rank, "tp_size": 2})
        writer.sglang_core([5, 6], [0, 1], [2], ["a"])
        writer.dump("hidden", noise(2, 8, seed=rank), layer_id=0)
    dump = open_foreign(tmp_path)
    assert [(info.rank, info.coords) for info in dump.infos()] == [(0, (("tp", 0),)), (1, (("tp", 1),))]
    assert dump.manifest.world == 2


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    file = Writer(tmp_path / "a").dump("hidden", noise(2, 8))
    file.rename(file.with_name(file.name.replace("step=0", "step=4")))
    assert "must not be renamed" in refused(open_foreign, tmp_path / "a")
    save(tmp_path / "b" / file.name, {"value": torch.zeros(1)})
    assert "is no file of SGLang's dumper" in refused(open_foreign, tmp_path / "b")
    Writer(tmp_path / "c").dump("hidden", noise(2, 8), layer_id="x")
    assert "layer_id is 'x'" in refused(open_foreign, tmp_path / "c")
    writer = Writer(tmp_path / "d")
    writer.dump("hidden", noise(2, 8))
    writer.index = 0
    writer.dump("other", noise(2, 8))
    assert "dump_index 1 twice" in refused(open_foreign, tmp_path / "d")
    writer = Writer(tmp_path / "e")
    writer.dump("rids", "a")
    writer.dump("input_ids", torch.tensor([1]))
    writer.dump("positions", torch.tensor([0]))
    assert "not a list of request ids" in refused(open_foreign, tmp_path / "e")
    (tmp_path / "f").mkdir()
    assert "holds no file step=" in refused(open_dumper, tmp_path / "f")
