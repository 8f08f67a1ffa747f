"""Loading checkpoints, strictly: every tensor used, every parameter filled, or one error that lists both."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from specalign.layer_ids.files import InputError
from specalign.models import GptOss, ModelConfigError, WeightsError, dequantize_mxfp4, load_gpt_oss, random_gpt_oss
from specalign.models.gpt_oss_weights import checkpoint_name
from tests.unit.models.tiny import BASE, tiny, tokens

BLOCK_0 = "model.layers.0.mlp.experts.gate_up_proj"


def tensors_of(model: GptOss) -> dict[str, Tensor]:
    return {checkpoint_name(name): parameter.detach().clone() for name, parameter in model.named_parameters()}


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] = BASE, *, shards: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(sorted(tensors))}
    for shard in set(weight_map.values()):
        save_file({name: tensors[name] for name, where in weight_map.items() if where == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def pack(tensors: dict[str, Tensor], name: str, *, seed: int = 0) -> Tensor:
    """Replaces `[experts, in, out]` by random blocks and scales; returns the matrix that they stand for."""
    experts, width, rows = tensors.pop(name).shape
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (experts, rows, width // 32, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(121, 126, (experts, rows, width // 32), generator=generator, dtype=torch.uint8)
    tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
    return dequantize_mxfp4(blocks, scales, dtype=torch.float32)


@pytest.mark.parametrize("shards", [1, 3])
def test_every_parameter_arrives_bit_for_bit(tmp_path: Path, shards: int) -> None:
    model = tiny()
    loaded = load_gpt_oss(write(tmp_path / "target", tensors_of(model), shards=shards))
    assert loaded.config == model.config
    for (name, got), (_, want) in zip(loaded.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(got, want), name
        assert not got.requires_grad
    assert not loaded.training
    assert torch.equal(loaded(tokens(9)).logits, model(tokens(9)).logits)


def test_names_are_those_of_transformers() -> None:
    names = tensors_of(tiny())
    assert len(names) == 3 + 17 * 4
    for name in (
        "model.embed_tokens.weight",
        "model.layers.3.input_layernorm.weight",
        "model.layers.3.self_attn.sinks",
        "model.layers.3.self_attn.o_proj.bias",
        "model.layers.3.post_attention_layernorm.weight",
        "model.layers.3.mlp.router.bias",
        "model.layers.3.mlp.experts.down_proj_bias",
        "model.norm.weight",
        "lm_head.weight",
    ):
        assert name in names


def test_the_dtype_is_the_configs_unless_said(tmp_path: Path) -> None:
    folder = write(tmp_path / "target", tensors_of(tiny()), BASE | {"dtype": "bfloat16"})
    assert {p.dtype for p in load_gpt_oss(folder).parameters()} == {torch.bfloat16}
    assert {p.dtype for p in load_gpt_oss(folder, dtype=torch.float16).parameters()} == {torch.float16}
    write(folder, tensors_of(tiny()), BASE | {"dtype": None})
    with pytest.raises(ModelConfigError, match="pass dtype="):
        load_gpt_oss(folder)


def test_mxfp4_experts_are_dequantized(tmp_path: Path) -> None:
    tensors, want = tensors_of(tiny()), dict[str, Tensor]()
    for layer in range(4):
        for part in ("gate_up_proj", "down_proj"):
            want[f"blocks.{layer}.moe.experts.{part}"] = pack(tensors, f"model.layers.{layer}.mlp.experts.{part}", seed=layer)
    loaded = load_gpt_oss(write(tmp_path / "target", tensors, BASE | {"quantization_config": {"quant_method": "mxfp4"}}))
    parameters = dict(loaded.named_parameters())
    for name, matrix in want.items():
        assert torch.equal(parameters[name], matrix), name


def test_one_error_lists_everything_that_does_not_fit(tmp_path: Path) -> None:
    tensors = tensors_of(tiny())
    del tensors["lm_head.weight"], tensors["model.layers.2.self_attn.sinks"]
    tensors["model.layers.2.self_attn.sink"] = torch.zeros(4)
    tensors["model.layers.4.input_layernorm.weight"] = torch.ones(64)
    tensors["model.norm.weight"] = torch.ones(65)
    tensors["model.layers.0.mlp.router.bias"] = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(WeightsError) as error:
        load_gpt_oss(write(tmp_path / "target", tensors))
    message = str(error.value)
    assert re.search(r"missing \(2\): model.layers.2.self_attn.sinks, lm_head.weight", message)
    assert re.search(r"not used \(2\): model.layers.2.self_attn.sink, model.layers.4.input_layernorm.weight", message)
    assert "model.norm.weight is F32 [65], wanted BF16/F16/F32 [64]" in message
    assert "model.layers.0.mlp.router.bias is I64 [4]" in message


def test_packed_and_plain_together_are_refused(tmp_path: Path) -> None:
    tensors = tensors_of(tiny())
    plain = tensors[BLOCK_0].clone()
    pack(tensors, BLOCK_0)
    tensors[BLOCK_0] = plain
    with pytest.raises(WeightsError, match=rf"not used \(1\): {BLOCK_0};"):
        load_gpt_oss(write(tmp_path / "target", tensors))


def test_blocks_without_scales_are_missing_scales(tmp_path: Path) -> None:
    tensors = tensors_of(tiny())
    pack(tensors, BLOCK_0)
    del tensors[f"{BLOCK_0}_scales"]
    with pytest.raises(WeightsError, match=rf"missing \(1\): {BLOCK_0}_scales;"):
        load_gpt_oss(write(tmp_path / "target", tensors))


def test_blocks_of_something_that_is_never_packed_are_not_used(tmp_path: Path) -> None:
    tensors = tensors_of(tiny()) | {"lm_head.weight_blocks": torch.zeros(97, 2, 16, dtype=torch.uint8)}
    with pytest.raises(WeightsError, match=r"not used \(1\): lm_head.weight_blocks;"):
        load_gpt_oss(write(tmp_path / "target", tensors))


def test_a_width_that_is_no_multiple_of_32_cannot_be_packed(tmp_path: Path) -> None:
    config = BASE | {"intermediate_size": 40}
    tensors = tensors_of(tiny(config))
    name = "model.layers.1.mlp.experts.down_proj"
    pack(tensors, name)
    with pytest.raises(WeightsError, match=rf"missing \(1\): {name}; not used \(2\): {name}_blocks, {name}_scales;"):
        load_gpt_oss(write(tmp_path / "target", tensors, config))


def test_a_scale_that_is_nan_names_its_tensor(tmp_path: Path) -> None:
    tensors = tensors_of(tiny())
    pack(tensors, BLOCK_0)
    tensors[f"{BLOCK_0}_scales"][1, 0, 0] = 255
    with pytest.raises(WeightsError, match=rf"{BLOCK_0}_blocks: MXFP4 expert 1 .*[(]255 is NaN"):
        load_gpt_oss(write(tmp_path / "target", tensors))


def test_a_missing_shard_a_stray_file_and_a_stale_index_are_errors(tmp_path: Path) -> None:
    folder = write(tmp_path / "target", tensors_of(tiny()), shards=3)
    save_file({"x": torch.zeros(1)}, folder / "stray.safetensors")
    with pytest.raises(WeightsError, match=r"does not name: stray\.safetensors"):
        load_gpt_oss(folder)
    (folder / "stray.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    stale = json.loads(index.read_text())
    stale["weight_map"]["model.ghost"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(stale))
    with pytest.raises(WeightsError, match=r"listed but in no file \(1\): model.ghost"):
        load_gpt_oss(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(InputError, match="model-00002-of-00003"):
        load_gpt_oss(folder)


def test_shards_without_an_index_must_be_all_there(tmp_path: Path) -> None:
    folder = write(tmp_path / "target", tensors_of(tiny()), shards=3)
    (folder / "model.safetensors.index.json").unlink()
    load_gpt_oss(folder)
    (folder / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(WeightsError, match="shards are missing"):
        load_gpt_oss(folder)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "target", tensors_of(tiny()))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"no safetensors files; pytorch_model.bin is a pickle"):
        load_gpt_oss(folder)


def test_random_weights_depend_on_the_seed_alone() -> None:
    config = tiny().config
    first, again, other = (random_gpt_oss(config, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first(tokens(5)).logits, again(tokens(5)).logits)
    assert not torch.equal(first(tokens(5)).logits, other(tokens(5)).logits)
    assert torch.equal(first.blocks[0].moe_norm.weight, torch.ones(64))
    assert first.blocks[0].moe.experts.gate_up_proj.std() == pytest.approx(0.02, rel=0.05)
