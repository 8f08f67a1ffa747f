"""SGLang's EAGLE3 head and ours, with the same config and the same tensors: what they compute must agree.

Neither side sees the other: SGLang's loader and ours each read the tensors under the names of a published file.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from specalign.draft import DraftError, Eagle3Head, build_eagle3, parse_eagle3_config
from specalign.layer_ids.draft_config import parse_draft
from specalign.layer_ids.preflight import check
from specalign.layer_ids.target_config import parse_target
from specalign.layer_ids.tensor_files import TensorFacts, TensorInfo
from tests.conformance.sglang_cpu.draft import HEAD, DraftOutput, forward, make_head, random_weights
from tests.conformance.sglang_cpu.targets import TOKENS

TOLERANCE: Final = 1e-5
ENGINE: Final = f"sglang=={importlib.metadata.version('sglang')}"
IDS: Final = "eagle_aux_hidden_state_layer_ids"

NORMS: Final[dict[str, dict[str, Any]]] = {
    "none": {},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "both": {"norm_before_fc": True, "fc_norm": True},
}
ROPES: Final[dict[str, dict[str, Any]]] = {
    "theta": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 1.5e5, "factor": 32.0, "original_max_position_embeddings": 16},
}
SHAPES: Final[dict[str, dict[str, Any]]] = {
    "two layers": {"num_hidden_layers": 2, "norm_before_fc": True},
    "a narrower target": {"target_hidden_size": 48, "fc_norm": True},
    "four ids": {"eagle_config": {IDS: [1, 2, 3, 5], "norm_before_fc": True}},
    "two ids": {"eagle_config": {IDS: [1, 3]}, "fc_norm": True},
    "wide attention heads": {"head_dim": 32},
    "whole vocabulary": {"draft_vocab_size": 256},
    "the flag nested": {"eagle_config": {"norm_before_fc": True}},
    "no aux states": {"eagle_config": {"use_aux_hidden_state": False}},
    "nested over top": {"eagle_config": {"norm_before_fc": False}, "norm_before_fc": True},
}

DEVIATIONS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "attention-bias-ignored": ("biases reach o_proj only", {"attention_bias": True}),
    "norm-ignored": ("the residual is not the normed state", {"norm_before_residual": True}),
    "sliding-window-ignored": ("every layer sees all", {"layer_types": ["sliding_attention"], "sliding_window": 3}),
    "width-mismatch": ("fc is left out where the states are as wide as the head", {"eagle_config": {IDS: [3]}}),
}
"""Code of the finding → what this version does otherwise, and a config that shows it."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """One head in two implementations, and the states of a target that it runs on."""

    config: dict[str, Any]
    weights: dict[str, torch.Tensor]
    states: torch.Tensor

    @classmethod
    def of(cls, **changes: Any) -> Pair:
        config = HEAD | changes
        weights = random_weights(config)
        width = weights["fc.weight"].shape[1] if "fc.weight" in weights else config["hidden_size"]
        # chunks of very different size, so that a norm over all of them and one for each are far apart
        scale = torch.linspace(0.2, 5.0, width)
        return cls(config, weights, torch.randn(len(TOKENS), width, generator=torch.Generator().manual_seed(7)) * scale)

    def engine(self) -> DraftOutput:
        return forward(make_head(self.config, self.weights), TOKENS, self.states)

    def ours(self, **changes: Any) -> DraftOutput:
        head = our_head(self.config | changes, self.weights)
        return run_ours(head, head.combine_states(self.states))


def our_head(config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> Eagle3Head:
    return build_eagle3(parse_eagle3_config(config, later_norm="hidden_norm"), weights)


def run_ours(head: Eagle3Head, hidden: torch.Tensor) -> DraftOutput:
    step = head(TOKENS, hidden, torch.arange(len(TOKENS)))
    return DraftOutput(step.normed, step.recycled, head.logits(step.normed))


def apart(one: DraftOutput, other: DraftOutput) -> float:
    """The largest absolute difference of output, recycled hidden state and logits; not a number where one of them is none."""
    fields = [field.name for field in dataclasses.fields(DraftOutput)]
    return float(torch.stack([(getattr(one, name) - getattr(other, name)).abs().max() for name in fields]).max())


def reported(config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> set[str]:
    """Codes of what `specalign check` says about this head on this engine, hints apart."""
    file = Path("model.safetensors")
    infos = {
        name: TensorInfo(name, "I64" if name == "d2t" else "F32", tuple(value.shape), file) for name, value in weights.items()
    }
    draft = parse_draft(config, name="head", tensors=TensorFacts(infos, (file,), complete=True))
    sizes = {"num_hidden_layers": 36, "hidden_size": 64, "vocab_size": 256}
    target = parse_target({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", **sizes}, name="target")
    return {found.code for found in check(draft, target, engines=[ENGINE]).findings if found.severity.value != "info"}


@pytest.mark.parametrize("norm_output", [False, True], ids=["recycles the sum", "recycles the normed"])
@pytest.mark.parametrize("norms", NORMS)
def test_both_heads_agree_under_every_norm_setting(norms: str, norm_output: bool) -> None:
    pair = Pair.of(**NORMS[norms], norm_output=norm_output)
    assert apart(pair.engine(), pair.ours()) <= TOLERANCE


def test_every_norm_setting_computes_something_else() -> None:
    """On these states and the same tensors, so that agreement means that the same norms ran, in the same order."""
    outputs = [pair.engine() for pair in (Pair.of(**flags) for flags in NORMS.values())]
    assert min(apart(one, other) for i, one in enumerate(outputs) for other in outputs[:i]) > 0.1


@pytest.mark.parametrize("rope", ROPES)
def test_both_heads_turn_positions_alike(rope: str) -> None:
    pair = Pair.of(rope_parameters=dict(ROPES[rope]), norm_before_fc=True)
    assert apart(pair.engine(), pair.ours()) <= TOLERANCE
    assert apart(pair.engine(), pair.ours(rope_parameters={"rope_type": "default", "rope_theta": 1e4})) > 1e-3


@pytest.mark.parametrize("shape", SHAPES)
def test_both_heads_agree_on_other_shapes(shape: str) -> None:
    pair = Pair.of(**SHAPES[shape])
    assert apart(pair.engine(), pair.ours()) <= TOLERANCE


@pytest.mark.parametrize("norm_output", [False, True])
def test_both_heads_agree_on_what_they_recycled(norm_output: bool) -> None:
    """A second pass takes the recycled hidden state, which goes past fc and its norms; each head is fed its own."""
    pair = Pair.of(norm_before_fc=True, fc_norm=True, norm_output=norm_output)
    engine, ours = make_head(pair.config, pair.weights), our_head(pair.config, pair.weights)
    first, twin = forward(engine, TOKENS, pair.states), run_ours(ours, ours.combine_states(pair.states))
    assert apart(forward(engine, TOKENS, first.recycled), run_ours(ours, twin.recycled)) <= TOLERANCE
    assert apart(first, run_ours(ours, twin.recycled)) > 0.1


def test_both_loaders_take_the_legacy_names() -> None:
    pair = Pair.of(fc_norm=True)
    legacy = {f"fc_norm.{i}.weight": f"aux_norm_{level}.weight" for i, level in enumerate(("low", "mid", "high"))}
    renamed = {legacy.get(name, name): value for name, value in pair.weights.items()}
    assert renamed.keys() != pair.weights.keys()
    old = Pair(pair.config, renamed, pair.states)
    assert apart(old.engine(), pair.ours()) <= TOLERANCE
    assert apart(old.ours(), pair.ours()) == 0


def test_both_vocabularies_name_the_same_target_tokens() -> None:
    pair = Pair.of()
    engine, ours = make_head(pair.config, pair.weights), our_head(pair.config, pair.weights)
    drafts = torch.arange(pair.config["draft_vocab_size"])
    assert torch.equal(engine.get_hot_token_id()[drafts], ours.vocab.to_target(drafts))


def known(code: str) -> Any:
    why = DEVIATIONS[code][0]
    # strict: an engine that mends it makes this test fail, and the profile is due for a row
    return pytest.param(code, marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"{ENGINE}: {code}, {why}"))


@pytest.mark.parametrize("code", [known(code) for code in DEVIATIONS])
def test_both_heads_agree_where_this_version_is_known_to_differ(code: str) -> None:
    pair = Pair.of(**DEVIATIONS[code][1])
    assert apart(pair.engine(), pair.ours()) <= TOLERANCE


@pytest.mark.parametrize("code", DEVIATIONS)
def test_the_check_reports_every_known_deviation(code: str) -> None:
    pair, plain = Pair.of(**DEVIATIONS[code][1]), Pair.of()
    assert code in reported(pair.config, pair.weights) - reported(plain.config, plain.weights)


@pytest.mark.parametrize(
    ("lost", "code"), [("lm_head.weight", "lm-head-missing"), ("fc.weight", "weight-missing"), ("norm.weight", "weight-missing")]
)
def test_a_tensor_that_the_file_lacks_is_refused_here_and_left_to_chance_there(lost: str, code: str) -> None:
    pair = Pair.of()
    weights = {name: value for name, value in pair.weights.items() if name != lost}
    unfilled = [name for name, value in make_head(pair.config, weights).named_parameters() if value.isnan().any()]
    assert [name.removeprefix("model.") for name in unfilled] == [lost]
    with pytest.raises(DraftError, match=lost):
        our_head(pair.config, weights)
    assert code in reported(pair.config, weights)
