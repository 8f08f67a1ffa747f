"""The files of SGLang 0.5.16's forward hooks, recorded while it served: two models, one prompt, six forwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specalign.dump.keys import RowKind
from specalign.dump.readers import open_foreign
from specalign.dump.readers.module_calls import ModuleCalls, open_module_calls
from tests.unit.dump.readers.foreign import (
    HOOKS,
    PROMPT,
    assert_bits,
    bits,
    engine_sum,
    load_all,
    noise,
    plain_rows,
    real,
    refused,
    save,
)

MODELS = ("gptoss", "llama")
KEYS = {*(f"boundary.{b}" for b in range(5)), "post_norm"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HOOKS / "llama", tmp_path / "llama"))


def call(folder: Path, module: str, number: int) -> Any:
    return real(folder / f"{module}.call{number:03d}.pt")


def change(folder: Path, module: str, number: int, edit: Callable[[Any], None]) -> None:
    content = call(folder, module, number)
    edit(content)
    torch.save(content, folder / f"{module}.call{number:03d}.pt")


@pytest.mark.parametrize("model", MODELS)
def test_rows_are_the_prompt_and_one_decode_step_each(model: str) -> None:
    dump = open_foreign(HOOKS / model)
    assert isinstance(dump, ModuleCalls)
    rows = [dump.rows(info) for info in dump.infos()]
    assert rows[0].tokens.tolist() == PROMPT
    assert rows[0].positions.tolist() == list(range(12))
    assert rows[0].kinds.tolist() == [RowKind.PREFILL] * 12
    assert [r.positions.tolist() for r in rows[1:]] == [[p] for p in range(12, 17)]
    assert [r.kinds.tolist() for r in rows[1:]] == [[RowKind.DECODE]] * 5
    assert {r.request_ids for r in rows} == {("request-0",)}
    for number, found in enumerate(rows):
        assert found.tokens.tolist() == call(HOOKS / model, "model", number)["input_ids"].tolist()
    assert any("no request ids" in note for note in dump.notes)


@pytest.mark.parametrize("model", MODELS)
def test_the_pass_infos_say_what_is_there(model: str) -> None:
    dump = open_foreign(HOOKS / model)
    assert [(info.rank, info.number, info.rows) for info in dump.infos()] == [(0, 0, 12), *((0, k, 1) for k in range(1, 6))]
    for info in dump.infos():
        assert set(info.tensors) == KEYS
        assert {spec.shape for spec in info.tensors.values()} == {(info.rows, 256)}
        assert {spec.dtype for spec in info.tensors.values()} == {"BF16"}
    infos = dump.infos()
    assert infos[1].tensors is infos[5].tensors
    assert dump.manifest.model == {
        "num_layers": 4,
        "hidden_size": 256,
        "vocab_size": 1024,
        "name": {"gptoss": "gpt_oss"}.get(model, model),
    }


@pytest.mark.parametrize("model", MODELS)
def test_boundaries_are_torch_s_own_residual_sums(model: str) -> None:
    for number, tensors in enumerate(load_all(open_foreign(HOOKS / model))):
        assert_bits(tensors["boundary.0"], call(HOOKS / model, "model.embed_tokens", number)["output"])
        for layer in range(4):
            hidden, residual = call(HOOKS / model, f"model.layers.{layer}", number)["output"]
            assert_bits(tensors[f"boundary.{layer + 1}"], engine_sum(hidden, residual))
        normed, residual = call(HOOKS / model, "model.norm", number)["output"]
        assert_bits(tensors["post_norm"], normed)
        assert_bits(tensors["boundary.4"], residual)


def test_only_the_keys_asked_for_are_loaded() -> None:
    dump = open_foreign(HOOKS / "llama")
    loaded = dump.load(dump.infos()[0], ["boundary.2", "boundary.9", "logits"])
    assert set(loaded) == {"boundary.2"}


@pytest.mark.parametrize("model", MODELS)
def test_the_dump_stays_the_same_when_it_is_loaded_twice(model: str) -> None:
    dump = open_foreign(HOOKS / model)
    for first, second in zip(load_all(dump), load_all(dump), strict=True):
        assert all(np.array_equal(first[key].data, second[key].data) for key in KEYS)


# Planted faults


def test_a_model_output_that_is_not_the_normed_state_is_refused(copy: Path) -> None:
    change(copy, "model", 3, lambda content: content["output"][0, 17].neg_())
    dump = open_foreign(copy)
    message = refused(dump.load, dump.infos()[3])
    assert "the output of model" in message
    assert "differ in 1 of 256 elements, first at [0, 17]" in message
    dump.load(dump.infos()[2])
    dump.load(dump.infos()[3], ["boundary.1"])


def test_a_last_residual_that_is_not_the_last_boundary_is_refused(copy: Path) -> None:
    change(copy, "model.norm", 0, lambda content: content["output"][1][3, 5].add_(1))
    dump = open_foreign(copy)
    message = refused(dump.load, dump.infos()[0])
    assert "boundary.4 and the residual of model.norm" in message
    assert "first at [3, 5]" in message
    spoilt = int(bits(call(copy, "model.norm", 0)["output"][1])[3, 5])
    assert f"0x{spoilt:04x}" in message


def test_a_swapped_delta_of_another_forward_is_caught(copy: Path) -> None:
    def swap(content: Any) -> None:
        content["output"][0] = call(copy, "model.layers.3", 2)["output"][0]

    change(copy, "model.layers.3", 1, swap)
    dump = open_foreign(copy)
    assert "must hold the same bits" in refused(dump.load, dump.infos()[1])


def test_a_missing_file_is_a_missing_key_and_a_note(copy: Path) -> None:
    (copy / "model.layers.2.call003.pt").unlink()
    dump = open_foreign(copy)
    assert set(dump.infos()[3].tensors) == KEYS - {"boundary.3"}
    assert set(dump.infos()[2].tensors) == KEYS
    assert "call 3 has no file of model.layers.2, which other calls have: it counts as missing" in dump.notes


def test_a_missing_forward_is_refused(copy: Path) -> None:
    for file in copy.glob("*.call002.pt"):
        file.unlink()
    assert "passes are missing" in refused(open_foreign, copy)


def test_a_call_without_any_block_has_no_rows(copy: Path) -> None:
    for file in copy.glob("*.call005.pt"):
        if file.name.split(".call")[0] not in ("model.norm", "model.embed_tokens"):
            file.unlink()
    assert "Hook the model's blocks too" in refused(open_foreign, copy)
    dump = open_module_calls(copy, rows={5: plain_rows(1)})
    assert dump.rows(dump.infos()[5]).request_ids == ("given",)


def test_calls_whose_counts_have_drifted_apart_are_refused(copy: Path) -> None:
    def shift(content: Any) -> None:
        content["positions"] += 1

    change(copy, "model.layers.1", 2, shift)
    assert "have drifted apart" in refused(open_foreign, copy)


def test_a_draft_among_the_target_s_calls_is_refused(copy: Path) -> None:
    change(copy, "model.layers.0", 4, lambda content: content.update({"class": "LlamaDecoderLayerEagle3"}))
    assert "target and draft were recorded into one folder" in refused(open_foreign, copy)


def test_speculative_passes_are_refused(copy: Path) -> None:
    for layer in ("model", *(f"model.layers.{i}" for i in range(4))):
        change(copy, layer, 1, lambda content: content.update(mode="5"))
    assert "speculation turned off" in refused(open_foreign, copy)


def test_a_renamed_file_is_refused(copy: Path) -> None:
    (copy / "model.layers.2.call003.pt").rename(copy / "model.layers.2.call004.pt")
    assert "must not be renamed" in refused(open_foreign, copy)


def test_a_subset_of_layers_needs_the_depth(copy: Path) -> None:
    for file in [*copy.glob("model.layers.2.*"), *copy.glob("model.layers.3.*")]:
        file.unlink()
    dump = open_foreign(copy)
    assert set(dump.infos()[0].tensors) == {"boundary.0", "boundary.1", "boundary.2", "boundary.4", "post_norm"}
    assert_bits(dump.load(dump.infos()[0])["boundary.4"], call(copy, "model.norm", 0)["output"][1])
    (copy / "config.json").unlink()
    blind = open_foreign(copy)
    assert "config.json" in refused(blind.load, blind.infos()[0])
    for file in copy.glob("model.layers.0.*"):
        file.unlink()
    blind = open_foreign(copy)
    assert set(blind.infos()[0].tensors) == {"boundary.0", "boundary.2", "post_norm", "module.model.norm.1"}


def test_a_damaged_config_is_refused(copy: Path) -> None:
    (copy / "config.json").write_text(json.dumps({"num_hidden_layers": "four"}))
    assert "num_hidden_layers is 'four'" in refused(open_foreign, copy)
    (copy / "config.json").write_text("{")
    assert "cut off" in refused(open_foreign, copy)


def test_a_boundary_with_other_rows_is_refused(copy: Path) -> None:
    def cut(content: Any) -> None:
        content["output"] = [part[:5].clone() for part in content["output"]]

    change(copy, "model.layers.1", 0, cut)
    message = refused(open_foreign, copy)
    assert "boundary.2 has shape [5, 256], but the pass has 12 token rows" in message


@pytest.mark.parametrize("output", [None, "text", [], [noise(12, 4), "text"]])
def test_outputs_that_are_no_tensors_are_refused(copy: Path, output: object) -> None:
    change(copy, "model.layers.1", 0, lambda content: content.update(output=output))
    assert "the output of model.layers.1" in refused(open_foreign, copy)


def test_three_outputs_of_a_block_and_an_uneven_pair_are_refused(copy: Path) -> None:
    change(copy, "model.layers.1", 0, lambda content: content.update(output=[noise(12, 4)] * 3))
    assert "returned 3 tensors" in refused(open_foreign, copy)
    change(copy, "model.layers.1", 0, lambda content: content.update(output=[noise(12, 4), noise(12, 4).float()]))
    assert "cannot be added" in refused(open_foreign, copy)


@pytest.mark.parametrize("content", [[1, 2], {"name": "model.layers.0"}, torch.zeros(2), 5])
def test_another_content_is_refused(tmp_path: Path, content: object) -> None:
    save(tmp_path / "model.layers.0.call000.pt", content)
    assert "is it a file of a forward hook?" in refused(open_foreign, tmp_path)


def test_files_that_vanish_or_change_later_are_refused(copy: Path) -> None:
    dump = open_foreign(copy)
    change(copy, "model.layers.1", 1, lambda content: content.update(output=noise(1, 99)))
    assert "no longer what it was" in refused(dump.load, dump.infos()[1])
    (copy / "model.layers.1.call002.pt").unlink()
    assert "no such file" in refused(dump.load, dump.infos()[2])


def test_a_vision_tower_beside_the_text_model_is_refused(copy: Path) -> None:
    content = call(copy, "model.layers.0", 0)
    content["name"] = "visual.layers.0"
    save(copy / "visual.layers.0.call000.pt", content)
    assert "record the text model only" in refused(open_foreign, copy)


def test_two_numbers_of_one_call_are_refused(copy: Path) -> None:
    shutil.copy(copy / "model.call001.pt", copy / "model.call01.pt")
    assert "are call 1 of one module" in refused(open_foreign, copy)


def test_the_rows_given_must_agree_with_the_files(copy: Path) -> None:
    assert "other tokens or positions" in refused(open_module_calls, copy, rows={0: plain_rows(12)})
