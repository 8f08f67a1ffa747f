"""Strict loading: every tensor used, every parameter filled, or one error that lists both."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specalign.draft import (
    Borrowed,
    DraftError,
    Eagle3Head,
    build_eagle3,
    load_eagle3,
    parse_eagle3_config,
    plan_loading,
    read_tensors,
)
from specalign.draft.plan import path_of

from .heads import config_dict, inputs, random_tensors, save_head

Tensors = dict[str, torch.Tensor]


def output(head: Eagle3Head) -> torch.Tensor:
    ids, states = inputs(5)
    step = head(ids, head.combine_states([s.to(head.norm.weight.dtype) for s in states]), torch.arange(5))
    return torch.cat([head.logits(step.normed), step.recycled], dim=-1)


def renamed(tensors: Tensors, *pairs: tuple[str, str]) -> Tensors:
    def new(name: str) -> str:
        return next((to + name.removeprefix(start) for start, to in pairs if name.startswith(start)), name)

    return {new(name): tensor for name, tensor in tensors.items()}


LEGACY = (
    ("layers.0.", "midlayer."),
    ("fc_norm.0.", "aux_norm_low."),
    ("fc_norm.1.", "aux_norm_mid."),
    ("fc_norm.2.", "aux_norm_high."),
)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_every_spelling_of_a_checkpoint_gives_the_same_head(tmp_path: Path, legacy: bool, prefix: str) -> None:
    raw = config_dict(fc_norm=True, norm_before_fc=True)
    tensors = random_tensors(raw, fc_norm=True, input_norm=True)
    want = output(build_eagle3(parse_eagle3_config(raw), tensors))
    spelled = {prefix + name: t for name, t in (renamed(tensors, *LEGACY) if legacy else tensors).items()}
    spelled |= {"model.rotary_emb.inv_freq": torch.ones(3), "midlayer.self_attn.rotary_emb.inv_freq": torch.ones(3)}
    assert torch.equal(output(load_eagle3(save_head(tmp_path, raw, spelled))), want)


def test_each_parameter_holds_its_own_tensor(tmp_path: Path) -> None:
    raw = config_dict(fc_norm=True, num_hidden_layers=2, attention_bias=True)
    tensors = random_tensors(raw, fc_norm=True, bias=True)
    head = load_eagle3(save_head(tmp_path, raw, tensors))
    held = {name.removeprefix("fc_input."): value for name, value in head.state_dict().items()}
    assert held.keys() == tensors.keys() - {"d2t"}
    assert all(torch.equal(held[name], tensors[name]) for name in held)
    assert not any(parameter.requires_grad for parameter in head.parameters())
    assert build_eagle3(head.config, {**head.state_dict(), "d2t": tensors["d2t"]}) is not None  # our own names load as well


def drop(*names: str):  # type: ignore[no-untyped-def]
    return lambda t: {k: v for k, v in t.items() if k not in names}


def add(name: str, *shape: int):  # type: ignore[no-untyped-def]
    return lambda t: {**t, name: torch.ones(*shape, dtype=torch.float64)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (add("extra.weight", 3), r"1 tensors of the file that nothing in this head uses: extra.weight"),
        (add("input_norm.weight", 48), r"uses: input_norm.weight.*norm flags"),
        (add("layers.1.mlp.up_proj.weight", 24, 16), r"uses: layers.1.mlp.up_proj.weight"),
        (add("layers.0.self_attn.q_norm.weight", 6), "uses: layers.0.self_attn.q_norm.weight"),
        (add("mask_hidden", 48), "uses: mask_hidden"),
        (add("t2d.weight", 40), "uses: t2d.weight"),
        (add("layers.0.rotary_emb.inv_freq.extra", 3), r"uses: layers.0.rotary_emb.inv_freq.extra"),
        (add("rotary_emb_inv_freq", 3), "uses: rotary_emb_inv_freq"),
        (drop("fc.weight"), r"1 parameters that nothing fills: fc.weight"),
        (drop("layers.0.hidden_norm.weight"), r"nothing fills: layers.0.hidden_norm.weight"),
        (drop("d2t"), "nothing fills: d2t"),
        (drop("lm_head.weight"), r"lm_head.weight \(the config states draft_vocab_size 12"),
        (drop("embed_tokens.weight"), r"embed_tokens.weight \(lend the target's with borrowed=\)"),
        (lambda t: renamed(t, ("layers.0.", "xmidlayer.")), r"uses: xmidlayer.*parameters that nothing fills: layers.0"),
        (lambda t: renamed(t, ("layers.0.", "midlayer2.")), r"uses: midlayer2.*nothing fills: layers.0"),
        (lambda t: renamed(t, ("layers.0.", "decoder.midlayer.")), r"uses: decoder.midlayer"),
        (lambda t: renamed(t, ("fc.", "model.model.fc.")), r"uses: model.model.fc.weight; 1 parameters that nothing fills: fc.weight"),
        (lambda t: renamed(t, ("fc.", "fc2.")), r"uses: fc2.weight; 1 parameters that nothing fills: fc.weight"),
        (add("fc.weight", 16, 32), r"1 tensors of the wrong shape: fc.weight \[16, 32\] against \[16, 48\]"),
        (add("layers.0.self_attn.q_proj.weight", 24, 16), r"q_proj.weight \[24, 16\] against \[24, 32\]"),
        (add("model.fc.weight", 16, 48), r"1 parameters named twice: fc_input.fc.weight by fc.weight and model.fc.weight"),
        (add("midlayer.hidden_norm.weight", 16), r"named twice: .* by layers.0.hidden_norm.weight and midlayer.hidden_norm.weight"),
        (lambda t: {**t, "model.d2t": t["d2t"]}, r"named twice: d2t by d2t and model.d2t"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_refused(change, says: str) -> None:  # type: ignore[no-untyped-def]
    raw = config_dict()
    with pytest.raises(DraftError, match=f"^draft head: .*{says}"):
        build_eagle3(parse_eagle3_config(raw), change(random_tensors(raw)))


@pytest.mark.parametrize(
    ("new", "old"), [("aux_norm_lower.", "fc_norm.0."), ("my_aux_norm_low.", "fc_norm.0."), ("aux_norm_highest.", "fc_norm.2.")]
)
def test_a_name_that_merely_contains_a_legacy_name_is_not_taken(new: str, old: str) -> None:
    raw = config_dict(fc_norm=True)
    tensors = renamed(random_tensors(raw, fc_norm=True), (old, new))
    with pytest.raises(DraftError, match=f"uses: {new}weight; 1 parameters that nothing fills: {old}weight"):
        build_eagle3(parse_eagle3_config(raw), tensors)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("midlayer.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("model.aux_norm_mid.weight", "fc_norm.1.weight"),
        ("xmidlayer.weight", "xmidlayer.weight"),
        ("aux_norm_lower.weight", "aux_norm_lower.weight"),
        ("layers.0.midlayer.weight", "layers.0.midlayer.weight"),
        ("models.fc.weight", "models.fc.weight"),
        ("model", "model"),
    ],
)
def test_legacy_names_are_whole_first_segments(name: str, path: str) -> None:
    assert path_of(name) == path


def test_one_error_lists_all_that_is_wrong() -> None:
    raw = config_dict()
    tensors = add("norm.weight", 17)(add("surplus", 2)(drop("fc.weight", "lm_head.weight")(random_tensors(raw))))
    plan = plan_loading(parse_eagle3_config(raw), {k: tuple(v.shape) for k, v in tensors.items()})
    assert not plan.ok
    for part in ("surplus", "fc.weight", "lm_head.weight (the config", "norm.weight [17] against [16]"):
        assert part in plan.format()


def test_lm_head_and_embeddings_are_borrowed_when_the_file_says_so(tmp_path: Path) -> None:
    raw = config_dict(draft_vocab_size=...)
    tensors = random_tensors(raw)
    want = output(build_eagle3(parse_eagle3_config(raw), tensors))
    lent = Borrowed(embed_tokens=tensors["embed_tokens.weight"], lm_head=tensors["lm_head.weight"])
    folder = save_head(tmp_path, raw, drop("embed_tokens.weight", "lm_head.weight")(tensors))
    head = load_eagle3(folder, borrowed=lent)
    assert torch.equal(output(head), want)
    assert head.embed_tokens.weight.data_ptr() == tensors["embed_tokens.weight"].data_ptr()  # shared, not copied
    plan = plan_loading(head.config, {k: tuple(v.shape) for k, v in read_tensors(folder).items()}, borrowed=lent)
    assert plan.borrowed == ("embed_tokens.weight", "lm_head.weight")
    assert "2 from the target (embed_tokens.weight, lm_head.weight)" in plan.format()
    with pytest.raises(DraftError, match=r"embed_tokens.weight \(lend.*lm_head.weight \(lend"):
        load_eagle3(folder)


@pytest.mark.parametrize("draft", [12, 40], ids=["small", "stated but full (SGLang #27908)"])
def test_a_stated_draft_vocabulary_never_borrows_lm_head(draft: int) -> None:
    raw = config_dict(draft_vocab_size=draft)
    tensors = drop("lm_head.weight")(random_tensors(raw))
    lent = Borrowed(lm_head=torch.ones(draft, 16, dtype=torch.float64))
    with pytest.raises(DraftError, match=f"lm_head.weight .the config states draft_vocab_size {draft}"):
        build_eagle3(parse_eagle3_config(raw), tensors, borrowed=lent)


def test_what_the_file_holds_wins_over_what_is_lent() -> None:
    raw = config_dict(draft_vocab_size=...)
    tensors = random_tensors(raw)
    lent = Borrowed(embed_tokens=torch.zeros(40, 16), lm_head=torch.zeros(40, 16))
    config = parse_eagle3_config(raw)
    assert torch.equal(output(build_eagle3(config, tensors, borrowed=lent)), output(build_eagle3(config, tensors)))


def test_a_lent_tensor_of_another_size_is_refused() -> None:
    raw = config_dict()
    tensors = drop("embed_tokens.weight")(random_tensors(raw))
    with pytest.raises(DraftError, match=r"the target's embed_tokens.weight \[40, 20\] against \[40, 16\]"):
        build_eagle3(parse_eagle3_config(raw), tensors, borrowed=Borrowed(embed_tokens=torch.ones(40, 20)))


def test_a_tied_head_has_no_lm_head_of_its_own() -> None:
    raw = config_dict(tie_word_embeddings=True, draft_vocab_size=...)
    tensors = random_tensors(raw)
    head = build_eagle3(parse_eagle3_config(raw), tensors)
    assert head.lm_head is None
    with pytest.raises(DraftError, match=r"uses: lm_head\.weight"):
        build_eagle3(parse_eagle3_config(raw), add("lm_head.weight", 40, 16)(tensors))


def test_the_norm_of_later_layers_is_the_one_in_the_file(tmp_path: Path) -> None:
    raw = config_dict(num_hidden_layers=2)
    tensors = random_tensors(raw)
    sglang = renamed(tensors, ("layers.1.input_layernorm", "layers.1.hidden_norm"))
    a, b = load_eagle3(save_head(tmp_path / "a", raw, tensors)), load_eagle3(save_head(tmp_path / "b", raw, sglang))
    assert (a.config.later_norm, b.config.later_norm) == ("input_layernorm", "hidden_norm")
    assert torch.equal(output(a), output(b))
    both = {**tensors, "layers.1.hidden_norm.weight": torch.ones(16, dtype=torch.float64)}
    with pytest.raises(DraftError, match="hold input_layernorm and hidden_norm"):
        load_eagle3(save_head(tmp_path / "c", raw, both))


def test_t2d_in_the_file_is_checked_against_d2t() -> None:
    raw = config_dict()
    tensors = random_tensors(raw)
    t2d = torch.zeros(40, dtype=torch.bool)
    t2d[tensors["d2t"] + torch.arange(12)] = True
    assert build_eagle3(parse_eagle3_config(raw), {**tensors, "t2d": t2d}).vocab.size == 12
    with pytest.raises(DraftError, match="t2d and d2t disagree about 40"):
        build_eagle3(parse_eagle3_config(raw), {**tensors, "t2d": ~t2d})


def test_d2t_reaches_the_loaded_head_and_is_checked_against_the_target(tmp_path: Path) -> None:
    raw = config_dict()
    folder = save_head(tmp_path, raw, random_tensors(raw))
    assert load_eagle3(folder, model_vocab_size=40).vocab.to_target(torch.tensor([11])).tolist() == [39]
    with pytest.raises(DraftError, match="the target at hand has 39"):
        load_eagle3(folder, model_vocab_size=39)


def test_dtypes_are_kept_or_converted_as_asked() -> None:
    raw = config_dict()
    tensors, config = random_tensors(raw), parse_eagle3_config(raw)
    bf16 = {k: v if k == "d2t" else v.bfloat16() for k, v in tensors.items()}
    assert {p.dtype for p in build_eagle3(config, bf16).parameters()} == {torch.bfloat16}
    assert {p.dtype for p in build_eagle3(config, bf16, dtype=torch.float32).parameters()} == {torch.float32}
    mixed = {**bf16, "norm.weight": tensors["norm.weight"]}
    with pytest.raises(DraftError, match=r"several dtypes: torch.bfloat16 \(.*\), torch.float64 \(norm.weight\); say which"):
        build_eagle3(config, mixed)
    assert {p.dtype for p in build_eagle3(config, mixed, dtype=torch.float16).parameters()} == {torch.float16}
    with pytest.raises(DraftError, match=r"fc.weight is torch.float8_e4m3fn: quantized"):
        build_eagle3(config, {**bf16, "fc.weight": bf16["fc.weight"].to(torch.float8_e4m3fn)}, dtype=torch.float32)


def test_shards_are_read_together_and_a_missing_one_is_named(tmp_path: Path) -> None:
    raw = config_dict()
    tensors = random_tensors(raw)
    save_head(tmp_path, raw, {})
    (tmp_path / "model.safetensors").unlink()
    half = len(tensors) // 2
    for number, names in enumerate((list(tensors)[:half], list(tensors)[half:]), 1):
        save_file({name: tensors[name] for name in names}, tmp_path / f"model-0000{number}-of-00002.safetensors")
    assert read_tensors(tmp_path).keys() == tensors.keys()
    assert torch.equal(output(load_eagle3(tmp_path)), output(build_eagle3(parse_eagle3_config(raw), tensors)))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DraftError, match="headers without their weights"):
        load_eagle3(tmp_path)


def test_pickles_and_header_prefixes_are_not_loaded(tmp_path: Path) -> None:
    raw = config_dict()
    folder = save_head(tmp_path, raw, random_tensors(raw))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(DraftError, match=r"only pickles \(pytorch_model.bin\)"):
        load_eagle3(folder)
    (folder / "model.safetensors.header").write_bytes(whole[:-1000])
    with pytest.raises(DraftError, match="headers without their weights"):
        load_eagle3(folder)
