"""GPT-OSS against transformers' GptOssForCausalLM: every boundary, the logits, greedy decoding, MXFP4, and planted faults.

transformers is the reference: eager attention, its plain loop over experts, fp32, tiny random weights that leave no part idle.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import specalign.models.gpt_oss as gpt_oss
import specalign.models.gpt_oss_attention as attention
import specalign.models.gpt_oss_moe as moe
from specalign.layer_ids import POST_NORM, State
from specalign.models import GptOss, GptOssConfig, RMSNorm, dequantize_mxfp4, load_gpt_oss
from specalign.numerics.rope import plain_frequencies, yarn_frequencies
from tests.unit.models.tiny import BASE, CONFIGS, YARN, drawn, tokens

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
PROMPT, NEW = 11, 64

every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """One thread, and no progress bars or advice from transformers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    yield
    torch.set_num_threads(threads)


def reference(config: dict[str, Any]) -> nn.Module:
    """transformers' model of this config, its weights drawn by name."""
    settings = {key: value for key, value in config.items() if key not in ("architectures", "dtype")}
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**settings))
    for name, parameter in model.named_parameters():
        parameter.data.copy_(drawn(name, parameter))
    return as_reference(model)


def as_reference(model: nn.Module) -> nn.Module:
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    return model.eval().requires_grad_(False)


@pytest.fixture
def both(tmp_path: Path) -> Callable[[dict[str, Any]], tuple[nn.Module, GptOss]]:
    """The reference, and our model loaded from the checkpoint that it wrote."""

    def make(config: dict[str, Any], **how_to_save: Any) -> tuple[nn.Module, GptOss]:
        theirs = reference(config)
        theirs.save_pretrained(tmp_path / "target", **how_to_save)
        return theirs, load_gpt_oss(tmp_path / "target")

    return make


def states_of(model: nn.Module, ids: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """transformers' boundaries 0..n by hooks on its layers, POST_NORM, and its logits."""
    found: list[Tensor] = []
    hooks = [model.model.embed_tokens.register_forward_hook(lambda _, __, output: found.append(output.clone()))]
    hooks += [layer.register_forward_hook(lambda _, __, output: found.append(output.clone())) for layer in model.model.layers]
    out = model(ids, output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    return found, out.hidden_states[-1], out.logits


def furthest(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max())


@every_config
def test_every_boundary_and_the_logits_agree(config: dict[str, Any], both: Any) -> None:
    theirs, ours = both(config)
    ids = tokens(40, batch=2)
    boundaries, post_norm, logits = states_of(theirs, ids)
    states: tuple[State, ...] = (*range(len(boundaries)), POST_NORM)
    assert len(boundaries) == ours.config.num_hidden_layers + 1
    out = ours(ids, capture=states)
    far = {str(state): furthest(got, want) for state, got, want in zip(states, out.states, [*boundaries, post_norm], strict=True)}
    far["logits"] = furthest(out.logits, logits)
    assert max(far.values()) <= TOLERANCE, far
    assert float(logits.abs().max()) > 1  # else 1e-5 would say little
    assert furthest(boundaries[-1], post_norm) > 1e-2


@every_config
def test_rope_has_the_same_bits(config: dict[str, Any], both: Any) -> None:
    theirs, ours = both(config)
    positions = torch.tensor([0, 1, 63, 64, 500, 4097, 131071])
    cos, sin = theirs.model.rotary_emb(torch.zeros(1), positions[None])
    got = ours.rotary.cos_sin(positions, torch.float32)
    assert torch.equal(ours.rotary.frequencies, theirs.model.rotary_emb.inv_freq)
    assert torch.equal(got[0], cos[0])
    assert torch.equal(got[1], sin[0])


@every_config
@pytest.mark.parametrize("rollback", [None, 0])
def test_greedy_decoding_gives_the_same_64_tokens(config: dict[str, Any], rollback: int | None, both: Any) -> None:
    theirs, ours = both(config)
    prompt = tokens(PROMPT, batch=2, seed=5)
    want = generated(theirs, prompt)
    got, lead = greedy(ours, prompt, rollback=rollback)
    assert got.shape == (2, PROMPT + NEW)
    assert torch.equal(got, want)
    assert lead > 10 * TOLERANCE  # no token was a near tie, so the agreement is no luck
    assert len(set(got[0, PROMPT:].tolist())) > 3  # nor is it one token over and over


def generated(model: nn.Module, prompt: Tensor) -> Tensor:
    """The prompt and `NEW` tokens by transformers.

    Its cache is left out for a window of 1: it keeps `keys[-window + 1 :]`, which for 1 is all rows in place of none.
    """
    settings = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0, "use_cache": model.config.sliding_window > 1}
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)


def greedy(model: GptOss, prompt: Tensor, *, rollback: int | None) -> tuple[Tensor, float]:
    """The prompt and `NEW` tokens, and the smallest lead of a chosen token over the next best one."""
    cache, ids, new, lead = model.new_cache(rollback=rollback), prompt, prompt, float("inf")
    for _ in range(NEW):
        best = model(new, cache=cache).logits[:, -1].topk(2)
        lead = min(lead, float((best.values[:, 0] - best.values[:, 1]).min()))
        new = best.indices[:, :1]
        ids = torch.cat((ids, new), dim=1)
    return ids, lead


def test_speculation_with_wrong_drafts_changes_no_token(both: Any) -> None:
    """Four drafts a pass, the last ones wrong: verify, crop, go on. The tokens must still be those of `generate`."""
    theirs, ours = both(BASE)
    prompt = tokens(PROMPT, seed=5)
    want = generated(theirs, prompt)
    cache, ids = ours.new_cache(rollback=5), prompt
    pending = prompt
    while ids.shape[1] < PROMPT + NEW:
        right = ids.shape[1] % 4
        drafts = want[:, ids.shape[1] : ids.shape[1] + 4].clone()
        drafts[:, right:] = (drafts[:, right:] + 1) % 97
        predicted = ours(torch.cat((pending, drafts), 1), cache=cache).logits.argmax(-1)[:, pending.shape[1] - 1 :]
        agreed = int((predicted[:, :-1] == drafts).long().cumprod(-1).sum())
        assert agreed == min(right, drafts.shape[1])
        ids = torch.cat((ids, predicted[:, : agreed + 1]), 1)
        cache.crop(ids.shape[1] - 1)
        pending = ids[:, -1:]
    assert torch.equal(ids[:, : PROMPT + NEW], want)


def test_sharded_checkpoints_of_transformers_load(tmp_path: Path, both: Any) -> None:
    theirs, ours = both(BASE, max_shard_size="60KB")
    assert len(list((tmp_path / "target").glob("model-*.safetensors"))) > 2
    assert furthest(ours(tokens(9)).logits, theirs(tokens(9)).logits) <= TOLERANCE


def test_the_old_spelling_of_rope_means_the_same_to_both(both: Any) -> None:
    old = {key: value for key, value in YARN.items() if key != "rope_theta"}
    config = {key: value for key, value in BASE.items() if key != "rope_parameters"}
    theirs = reference(config | {"rope_scaling": dict(old), "rope_theta": 5000.0})
    ours = GptOss(GptOssConfig.from_dict(config | {"rope_scaling": old, "rope_theta": 5000.0}))
    assert torch.equal(ours.rotary.frequencies, theirs.model.rotary_emb.inv_freq)


def test_a_config_without_rope_means_the_same_to_both() -> None:
    config = {key: value for key, value in BASE.items() if key not in ("rope_parameters", "layer_types")}
    theirs = reference(config)
    ours = GptOss(GptOssConfig.from_dict(config))
    assert torch.equal(ours.rotary.frequencies, theirs.model.rotary_emb.inv_freq)
    assert ours.rotary.concentration == theirs.model.rotary_emb.attention_scaling
    assert ours.config.layer_types == tuple(theirs.config.layer_types)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mxfp4_equals_transformers_helper_bit_for_bit(dtype: torch.dtype) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 24, 5, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(1, 253, (3, 24, 5), generator=generator, dtype=torch.uint8)
    want = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    got = dequantize_mxfp4(blocks, scales, dtype=dtype)
    assert got.dtype == want.dtype
    assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


def test_an_mxfp4_checkpoint_gives_what_transformers_makes_of_it(tmp_path: Path) -> None:
    """The whole way: packed experts on disk, dequantized by both, every boundary and the logits."""
    folder = tmp_path / "target"
    reference(BASE).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, width, rows = tensors.pop(name).shape
        blocks, scales = (experts, rows, width // 32, 16), (experts, rows, width // 32)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, blocks, generator=generator, dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(121, 125, scales, generator=generator, dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))

    dequantized = transformers.Mxfp4Config(dequantize=True)
    theirs = transformers.GptOssForCausalLM.from_pretrained(folder, quantization_config=dequantized, dtype=torch.float32)
    theirs = as_reference(theirs.float())
    ours, ids = load_gpt_oss(folder), tokens(20)
    boundaries, _, logits = states_of(theirs, ids)
    out = ours(ids, capture=tuple(range(5)))
    assert all(furthest(got, want) <= TOLERANCE for got, want in zip(out.states, boundaries, strict=True))
    assert furthest(out.logits, logits) <= TOLERANCE
    assert float(logits.abs().max()) > 1


def softmax_over_all(self: moe.Router, x: Tensor) -> tuple[Tensor, Tensor]:
    logits = nn.functional.linear(x, self.weight, self.bias)
    weights, experts = torch.topk(logits.softmax(-1), self.top_k, dim=-1)
    return weights, experts


def no_router_bias(self: moe.Router, x: Tensor) -> tuple[Tensor, Tensor]:
    best, experts = torch.topk(nn.functional.linear(x, self.weight), self.top_k, dim=-1)
    return best.softmax(-1), experts


def halves(x: Tensor, *, alpha: float, limit: float) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return swiglu(torch.stack((gate, up), -1).flatten(-2), alpha=alpha, limit=limit)


def without_sinks(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, mask: Tensor) -> Tensor:
    return attend(q, k, v, torch.full_like(sinks, float("-inf")), mask)


def sinks_of_other_heads(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, mask: Tensor) -> Tensor:
    return attend(q, k, v, sinks.T.reshape(sinks.shape), mask)


def without_eps(self: RMSNorm, x: Tensor) -> Tensor:
    wide = x.float()
    return self.weight * wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True))


def interleaved_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    order = torch.arange(x.shape[-1]).view(-1, 2).T.flatten()
    return rotate(x[..., order], cos, sin)[..., order.argsort()]


swiglu, attend, visible, rotate = moe.swiglu, attention.attend, attention.visible, attention.rotate
PLANTED: dict[str, tuple[object, str, object]] = {
    "window one row too wide": (gpt_oss, "visible", lambda past, n, w, device: visible(past, n, w and w + 1, device)),
    "window one row too narrow": (gpt_oss, "visible", lambda past, n, w, device: visible(past, n, w and w - 1, device)),
    "no window": (gpt_oss, "visible", lambda past, n, w, device: visible(past, n, None, device)),
    "no sinks": (attention, "attend", without_sinks),
    "sinks of other heads": (attention, "attend", sinks_of_other_heads),
    "rope turns neighbours": (attention, "rotate", interleaved_pairs),
    "rope without yarn": (gpt_oss, "yarn_frequencies", lambda dim, theta, **_: plain_frequencies(dim, theta)),
    "yarn truncated": (gpt_oss, "yarn_frequencies", lambda d, t, **kw: yarn_frequencies(d, t, **(kw | {"truncate": True}))),
    "softmax before top-k": (moe.Router, "forward", softmax_over_all),
    "router bias dropped": (moe.Router, "forward", no_router_bias),
    "gate and up in halves": (moe, "swiglu", halves),
    "no clamp": (moe, "swiglu", lambda x, *, alpha, limit: swiglu(x, alpha=alpha, limit=1e9)),
    "alpha 1": (moe, "swiglu", lambda x, *, alpha, limit: swiglu(x, alpha=1.0, limit=limit)),
    "up without + 1": (
        moe,
        "swiglu",
        lambda x, *, alpha, limit: swiglu(x + torch.tensor([0.0, -1.0]).repeat(x.shape[-1] // 2), alpha=alpha, limit=limit),
    ),
    "norm without eps": (RMSNorm, "forward", without_eps),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_seen(fault: str, both: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each fault moves the logits by far more than the tolerance; without it they agree."""
    theirs, ours = both(BASE | {"swiglu_limit": 0.5, "rms_norm_eps": 1e-3})
    ids = tokens(40)
    want = theirs(ids).logits
    assert furthest(ours(ids).logits, want) <= TOLERANCE
    where, name, broken = PLANTED[fault]
    monkeypatch.setattr(where, name, broken)
    assert furthest(load_gpt_oss(tmp_path / "target")(ids).logits, want) > 100 * TOLERANCE


def test_a_concentration_that_is_ignored_is_seen(both: Any) -> None:
    theirs, ours = both(BASE)
    ours.rotary.concentration = 1.0
    assert furthest(ours(tokens(40)).logits, theirs(tokens(40)).logits) > 100 * TOLERANCE


@pytest.mark.parametrize("name", ["gate_up_proj_bias", "down_proj_bias"])
def test_an_expert_bias_that_is_ignored_is_seen(name: str, both: Any) -> None:
    theirs, ours = both(BASE)
    for block in ours.blocks:
        getattr(block.moe.experts, name).zero_()
    assert furthest(ours(tokens(40)).logits, theirs(tokens(40)).logits) > 100 * TOLERANCE
