"""SGLang's tensor dump: the real files of a toy model, and files as SGLang's and slime's hooks write them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specalign.dump.keys import RowKind
from specalign.dump.readers import open_foreign
from specalign.dump.readers.sglang_tensor_dump import open_tensor_dump
from tests.unit.dump.readers.foreign import (
    DATA,
    TOY,
    assert_bits,
    engine_sum,
    info_fields,
    load_all,
    noise,
    plain_rows,
    real,
    refused,
    save,
)

GIVEN = {number: plain_rows(5) for number in range(3)}
RANK = "TP0_PP0_Rank0_pid7"


# The real files


def test_the_off_by_one_of_the_real_files_is_undone() -> None:
    """The toy's `model` returns what its norm does, so the right forward is the one where the two are equal: only file k + 1."""
    files = [real(TOY / f"Pass{k:05d}.pt") for k in range(4)]
    dump = open_foreign(DATA / "tensor_dump", rows=GIVEN)
    assert [info.number for info in dump.infos()] == [0, 1, 2]
    for k, tensors in enumerate(load_all(dump)):
        assert [torch.equal(files[k]["model.norm"], files[j]["model"]) for j in (1, 2, 3)] == [j == k + 1 for j in (1, 2, 3)]
        assert_bits(tensors["post_norm"], files[k]["model.norm"])
        assert_bits(tensors["module.lm_head"], files[k + 1]["lm_head"])
        assert_bits(tensors["boundary.0"], files[k]["model.embed_tokens"])
        for layer in range(3):
            assert_bits(tensors[f"module.layers.{layer}.up"], files[k][f"model.layers.{layer}.up"])
    assert dump.notes == ()


def test_a_rank_s_folder_may_be_opened_itself() -> None:
    assert len(open_foreign(TOY, rows=GIVEN).infos()) == 3


def test_the_real_files_say_nothing_of_their_tokens() -> None:
    message = refused(open_foreign, DATA / "tensor_dump")
    assert "does not say which tokens its rows are" in message
    assert "--forward-hooks" in message
    assert "Pass00002" in refused(open_foreign, DATA / "tensor_dump", rows={0: plain_rows(5), 1: plain_rows(5)})


def test_a_dump_that_ends_early_loses_the_last_forward_s_logits(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(TOY, tmp_path / TOY.name))
    (copy / "Pass00003.pt").unlink()
    dump = open_foreign(tmp_path, rows=GIVEN)
    assert [("module.lm_head" in info.tensors) for info in dump.infos()] == [True, True, False]
    assert dump.notes == (
        "lm_head, model of the last forward (pass 2) were never written: SGLang writes them with the next forward",
    )


def test_a_file_that_is_missing_in_between_is_refused(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(TOY, tmp_path / TOY.name))
    (copy / "Pass00001.pt").unlink()
    assert "Pass 1 is missing, and 3 is there" in refused(open_foreign, tmp_path, rows=GIVEN)
    (copy / "Pass00000.pt").unlink()
    assert "Pass 0 is missing" in refused(open_foreign, tmp_path, rows=GIVEN)


def test_outputs_of_another_forward_are_caught(tmp_path: Path) -> None:
    """Were the shift not there or forgotten, `model` would not be what the norm returned."""
    copy = Path(shutil.copytree(TOY, tmp_path / TOY.name))
    files = [real(copy / f"Pass{k:05d}.pt") for k in range(4)]
    torch.save(files[2] | {"model": files[1]["model"]}, copy / "Pass00002.pt")
    dump = open_foreign(tmp_path, rows=GIVEN)
    assert "post_norm and the output of model must hold the same bits" in refused(dump.load, dump.infos()[1])


# Files as stock SGLang writes them


def forward(seed: int, rows: int) -> dict[str, object]:
    """What the hooks collect inside one forward of a two-block model with fused norms."""
    sums = [noise(rows, 8, seed=10 * seed + i) for i in range(3)]
    return {
        "model.embed_tokens": sums[0],
        "model.layers.0.input_layernorm": noise(rows, 8, seed=seed + 100),
        "model.layers.0.self_attn.o_proj": noise(rows, 8, seed=seed + 101),
        "model.layers.1.input_layernorm": [noise(rows, 8, seed=seed + 102), sums[1]],
        "model.layers.1.mlp.down_proj": noise(rows, 8, seed=seed + 103),
        "model.norm": [noise(rows, 8, seed=seed + 104), sums[2]],
    }


def normed(collected: Mapping[str, object]) -> Tensor:
    value = collected["model.norm"]
    assert isinstance(value, list)
    return value[0]


def stock(folder: Path, forwards: Sequence[tuple[dict[str, object], dict[str, object], Tensor]]) -> Path:
    """The files of stock SGLang: each is written when `model` ends, before what it and the logits processor returned is added."""
    behind: dict[str, object] = {}
    for number, (collected, info, logits) in enumerate(forwards):
        save(folder / RANK / f"Pass{number:05d}.pt", {**behind, **collected, **info})
        behind = {"model": normed(collected), "logits_processor": logits}
    return folder


def test_stock_files_give_boundaries_by_the_residuals_of_the_norms(tmp_path: Path) -> None:
    passes = [forward(1, 4), forward(2, 1), forward(3, 1)]
    infos = [info_fields([5, 6, 7, 8], [0, 1, 2, 3], [4]), info_fields([9], [4], [5]), info_fields([3], [5], [6])]
    logits = [noise(1, 32, seed=9).float(), noise(1, 32, seed=8).float(), noise(1, 32, seed=7).float()]
    stock(tmp_path, list(zip(passes, infos, logits, strict=True)))
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 2}')
    dump = open_foreign(tmp_path)
    assert [dump.rows(info).kinds.tolist() for info in dump.infos()] == [
        [RowKind.PREFILL] * 4,
        [RowKind.DECODE],
        [RowKind.DECODE],
    ]
    for collected, tensors in zip(passes, load_all(dump), strict=True):
        assert_bits(tensors["boundary.0"], collected["model.embed_tokens"])  # type: ignore[arg-type]
        assert_bits(tensors["boundary.1"], collected["model.layers.1.input_layernorm"][1])  # type: ignore[index]
        assert_bits(tensors["boundary.2"], collected["model.norm"][1])  # type: ignore[index]
        assert_bits(tensors["post_norm"], normed(collected))
        assert "module.layers.1.input_layernorm.0" in tensors
    loaded = load_all(dump)
    assert "logits" not in loaded[0]
    assert_bits(loaded[1]["logits"], logits[1])
    assert "logits" not in loaded[2]
    assert "logits is left out: not one row for each token (passes: 1)" in dump.notes
    assert any("model of the last forward (pass 2) were never written" in note for note in dump.notes)


def test_without_the_depth_the_last_residual_is_a_module_s(tmp_path: Path) -> None:
    stock(tmp_path, [(forward(1, 4), info_fields([5, 6, 7, 8], [0, 1, 2, 3], [4]), noise(1, 32))])
    dump = open_foreign(tmp_path)
    assert "module.model.norm.1" in dump.infos()[0].tensors
    assert "boundary.2" not in dump.infos()[0].tensors


def test_modules_with_other_rows_are_left_out_with_a_note(tmp_path: Path) -> None:
    collected = forward(1, 4) | {"model.layers.0.mlp.experts": noise(7, 8), "model.layers.0.mlp.scale": torch.tensor(1.0)}
    stock(tmp_path, [(collected, info_fields([5, 6, 7, 8], [0, 1, 2, 3], [4]), noise(1, 32))])
    dump = open_foreign(tmp_path)
    assert not any("experts" in key or "scale" in key for key in dump.infos()[0].tensors)
    assert "module.layers.0.mlp.experts is left out: not one row for each token (passes: 1)" in dump.notes
    assert "module.layers.0.mlp.scale is left out: not one row for each token (passes: 1)" in dump.notes


def test_a_vision_tower_that_runs_now_and_then_is_left_out(tmp_path: Path) -> None:
    second = {"visual.patch": noise(1, 8)} | forward(2, 1)
    infos = [info_fields([5, 6], [0, 1], [2]), info_fields([9], [2], [3])]
    stock(tmp_path, [(forward(1, 2), infos[0], noise(1, 32)), (second, infos[1], noise(1, 32))])
    dump = open_foreign(tmp_path)
    assert "visual.patch is left out: of which forward it is cannot be told" in dump.notes
    assert not any("visual" in key for info in dump.infos() for key in info.tensors)


# slime's variant


def slime_pass(seed: int, tokens: list[int], positions: list[int], rids: list[str], **fields: object) -> dict[str, object]:
    rows = len(tokens)
    layers = {f"model.layers.{i}": [noise(rows, 8, seed=seed + i), noise(rows, 8, seed=seed + 50 + i)] for i in range(2)}
    lengths = [p + 1 for p in positions][-len(rids) :]
    counts = fields.pop("counts", None)
    if isinstance(counts, list):
        ends = [sum(counts[: i + 1]) - 1 for i in range(len(counts))]
        lengths = [positions[end] + 1 for end in ends]
        fields = {"extend_seq_lens": counts, **fields}
    return {**layers, **info_fields(tokens, positions, lengths, rids=rids, **fields)}


def chunks(folder: Path, records: Sequence[object], size: int) -> Path:
    for at in range(0, len(records), size):
        save(folder / RANK / f"Chunk{at // size:05d}.pt", list(records[at : at + size]))
    return folder


RECORDS = [
    slime_pass(1, [9], [0], ["HEALTH_CHECK_1"], counts=[1], forward_mode="1"),
    slime_pass(2, [5, 6, 7, 5, 6], [0, 1, 2, 0, 1], ["a", "b"], counts=[3, 2], forward_mode="1"),
    slime_pass(3, [8, 8], [3, 2], ["a", "b"], forward_mode="2"),
    slime_pass(4, [4], [3], ["b"], forward_mode="2"),
    slime_pass(5, [6, 8, 4, 2], [1, 2, 3, 4], ["b"], counts=[4], forward_mode="1"),
]


@pytest.mark.parametrize("size", [2, 5, 64])
def test_chunks_of_slime_are_passes(tmp_path: Path, size: int) -> None:
    dump = open_foreign(chunks(tmp_path, RECORDS, size))
    assert [info.rows for info in dump.infos()] == [1, 5, 2, 1, 4]
    rows = [dump.rows(info) for info in dump.infos()]
    assert rows[0].kinds.tolist() == [RowKind.HEALTH_CHECK]
    assert rows[1].request_ids == ("a", "b")
    assert rows[1].requests.tolist() == [0, 0, 0, 1, 1]
    assert rows[2].kinds.tolist() == [RowKind.DECODE] * 2
    assert rows[4].kinds.tolist() == [RowKind.PREFILL] * 4  # b was retracted and prefilled again behind its cached prefix
    for record, tensors in zip(RECORDS, load_all(dump), strict=True):
        for layer in range(2):
            delta, residual = record[f"model.layers.{layer}"]  # type: ignore[misc]
            assert_bits(tensors[f"boundary.{layer + 1}"], engine_sum(delta, residual))
    assert dump.notes == ()


def test_slime_records_the_top_module_in_its_own_file(tmp_path: Path) -> None:
    first, second = (slime_pass(k, [5], [k], ["a"], forward_mode="2") | {"model": noise(1, 8, seed=k)} for k in (0, 1))
    for number, record in enumerate((first, second)):
        save(tmp_path / RANK / f"Pass{number:05d}.pt", record)
    dump = open_foreign(tmp_path)
    for record, tensors in zip((first, second), load_all(dump), strict=True):
        assert_bits(tensors["module.model"], record["model"])
    assert not any("never written" in note for note in dump.notes)


def test_a_lost_pass_shows_in_the_positions(tmp_path: Path) -> None:
    chunks(tmp_path, [*RECORDS[:2], RECORDS[3]], 64)
    message = refused(open_foreign, tmp_path)
    assert "request 'b' goes on at position 3, and 2 is its next" in message
    assert "Chunk00000.pt pass 2" in message


def test_a_chunk_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    chunks(tmp_path, RECORDS, 2)
    last = tmp_path / RANK / "Chunk00002.pt"
    last.write_bytes(last.read_bytes()[:-40])
    assert "no whole torch file" in refused(open_foreign, tmp_path)


def test_an_fp32_residual_is_not_taken_for_the_boundary(tmp_path: Path) -> None:
    record = slime_pass(1, [5, 6], [0, 1], ["a"], counts=[2], forward_mode="1")
    record["model.layers.1.input_layernorm"] = [noise(2, 8), noise(2, 8).float()]
    dump = open_foreign(chunks(tmp_path, [record], 8))
    assert dump.infos()[0].tensors["module.layers.1.input_layernorm.1"].dtype == "F32"
    delta, residual = record["model.layers.0"]  # type: ignore[misc]
    assert_bits(load_all(dump)[0]["boundary.1"], engine_sum(delta, residual))


def test_a_partial_sum_of_one_rank_is_caught_by_the_next_norm(tmp_path: Path) -> None:
    """With all-reduce fused into the next norm, a block returns its rank's addend: the pair is no boundary then."""
    record = slime_pass(1, [5, 6], [0, 1], ["a"], counts=[2], forward_mode="1")
    record["model.layers.1.input_layernorm"] = [noise(2, 8), noise(2, 8, seed=77)]
    dump = open_foreign(chunks(tmp_path, [record], 8))
    message = refused(dump.load, dump.infos()[0])
    assert "boundary.1 and the residual of model.layers.1.input_layernorm" in message
    assert "one rank's addend" in message


# Layouts and refusals


def test_ranks_carry_their_place(tmp_path: Path) -> None:
    for tp in range(2):
        for pp in range(2):
            record = info_fields([5, 6], [0, 1], [2], rids=["a"], extend_seq_lens=[2], forward_mode="1")
            record[f"model.layers.{pp}"] = [noise(2, 8, seed=pp), noise(2, 8, seed=9)]
            save(tmp_path / f"TP{tp}_PP{pp}_Rank{2 * pp + tp}_pid{tp}{pp}" / "Pass00000.pt", record)
    dump = open_foreign(tmp_path)
    assert [(i.rank, i.coords, set(i.tensors)) for i in dump.infos()] == [
        (0, (("tp", 0), ("pp", 0)), {"boundary.1"}),
        (1, (("tp", 1), ("pp", 0)), {"boundary.1"}),
        (2, (("tp", 0), ("pp", 1)), {"boundary.2"}),
        (3, (("tp", 1), ("pp", 1)), {"boundary.2"}),
    ]
    assert (dump.manifest.layout, dump.manifest.world) == ({"tp": 2, "pp": 2}, 4)
    assert any("taken for copies" in note for note in dump.notes)


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    for pid in (1, 2):
        shutil.copytree(TOY, tmp_path / f"TP0_PP0_Rank0_pid{pid}")
    assert "keep one run a folder" in refused(open_foreign, tmp_path, rows=GIVEN)


def test_target_and_draft_are_opened_one_at_a_time(tmp_path: Path) -> None:
    for role in ("target", "draft"):
        shutil.copytree(TOY, tmp_path / role / TOY.name)
    message = refused(open_foreign, tmp_path, rows=GIVEN)
    assert "target and draft" in message
    assert "open one of them" in message
    assert len(open_foreign(tmp_path / "draft", rows=GIVEN).infos()) == 3


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "neither Pass nor Chunk"),
        ({"Pass00000.pt": {"model.x": torch.zeros(1)}, "Chunk00000.pt": []}, "Chunk and Pass files"),
        ({"Pass00000.pt": [1]}, "not a table of tensors"),
        ({"Pass00000.pt": {3: torch.zeros(1)}}, "not a table of tensors"),
        ({"Chunk00000.pt": {"model.x": torch.zeros(1)}}, "not a list of passes"),
        ({"Chunk00000.pt": [torch.zeros(1)]}, "holds a tensor, not a table"),
        ({"Pass00000.pt": {"model.layers.0.x": "text"} | info_fields([5], [0], [1])}, "holds a str, not a tensor"),
        ({"Pass00000.pt": {"model.x": torch.zeros(1)} | info_fields([5], [0], [1], rids=[3])}, "not a list of request ids"),
        ({"Pass00000.pt": {"model.x": torch.zeros(1), "model.forward_batch_info.input_ids": torch.zeros(1), "model.forward_batch_info.positions": torch.zeros(1)}}, "holds no integers"),
        ({"Pass00000.pt": info_fields([5], [0], [1]), "Pass00001.pt": {"lm_head": torch.zeros(1)}, "Pass00002.pt": info_fields([5], [1], [2])}, "nothing of its own forward"),
        ({"Pass00000.pt": info_fields([5], [0], [1]) | {"draft.forward_batch_info.input_ids": torch.zeros(1)}}, "one top module is read"),
    ],
)  # fmt: skip
def test_damaged_folders_are_refused(tmp_path: Path, files: Mapping[str, object], words: str) -> None:
    (tmp_path / RANK).mkdir()
    for name, content in files.items():
        save(tmp_path / RANK / name, content)
    assert words in refused(open_tensor_dump, tmp_path)


def test_multimodal_positions_of_text_are_read(tmp_path: Path) -> None:
    record = info_fields([5, 6], [0, 1], [2]) | {"model.layers.0": [noise(2, 8), noise(2, 8)]}
    record["model.forward_batch_info.positions"] = torch.tensor([[0, 1]] * 3)
    save(tmp_path / "text" / RANK / "Pass00000.pt", record)
    assert open_foreign(tmp_path / "text").rows(open_foreign(tmp_path / "text").infos()[0]).positions.tolist() == [0, 1]
    record["model.forward_batch_info.positions"] = torch.tensor([[0, 1], [0, 1], [0, 2]])
    save(tmp_path / "image" / RANK / "Pass00000.pt", record)
    assert "multimodal" in refused(open_foreign, tmp_path / "image")
