"""One scenario for each finding code: a pair that shows it, and the same pair mended, which must not.

`docs/check.md` is made from these, so that every example in it has run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specalign.layer_ids.draft_config import DraftSpec, Kind, parse_draft
from specalign.layer_ids.engine_profiles import CaptureProfile, DraftProfile, Engine
from specalign.layer_ids.engines import load_engines
from specalign.layer_ids.preflight import CheckReport, check
from specalign.layer_ids.target_config import TargetSpec, parse_target
from specalign.layer_ids.tensor_files import TensorFacts, TensorInfo

H = 2880
IDS = "eagle_aux_hidden_state_layer_ids"

GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "hidden_size": H,
    "vocab_size": 201088,
}
LLAMA: dict[str, Any] = GPT_OSS | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}

HEAD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": H,
    "num_hidden_layers": 1,
    "num_attention_heads": 45,
    "vocab_size": 201088,
    "draft_vocab_size": 201088,
    "eagle_config": {IDS: [24, 30, 36]},
    IDS: [24, 30, 36],
}
"""A head whose ids are proven boundaries, at both places, with a full vocabulary."""

LAYER = {f"midlayer.self_attn.{p}_proj.weight": (H, H) for p in "qkvo"} | {"midlayer.mlp.down_proj.weight": (H, 4 * H)}
TENSORS: dict[str, tuple[int, ...]] = LAYER | {"fc.weight": (H, 3 * H), "norm.weight": (H,), "lm_head.weight": (201088, H)}

TABLE = load_engines()
"""The real table, and one made-up engine for what no profiled version does any more."""
TABLE = dataclasses.replace(
    TABLE,
    engines={**TABLE.engines, "made-up": Engine("made-up", "an engine of these tests", "server", ("1",))},
    captures=(*TABLE.captures, CaptureProfile("made-up", "*", ("eagle3",), ("*",), "boundary", "none", "I", ids_from=(IDS,))),
    drafts=(*TABLE.drafts, DraftProfile("made-up", "*", ("eagle3",), ("*",), "none", "I", reads={"head_dim": ()})),
)

NEW, OLD, VLLM = "sglang==0.5.23", "sglang==0.5.16", "vllm==0.33.0"


def eagle(**settings: Any) -> dict[str, Any]:
    """The change of `HEAD` whose eagle_config also has `settings`."""
    return {"eagle_config": HEAD["eagle_config"] | settings}


def ids(value: object) -> dict[str, Any]:
    """The change of `HEAD` to other ids at both places."""
    return {"eagle_config": {IDS: value}, IDS: value}


NO_IDS: dict[str, Any] = {"eagle_config": None, IDS: None}


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A pair that has a finding, and what mends it.

    Attributes:
        code: the finding.
        severity: as text.
        broken: changes to `HEAD` (or to `base`); `mended` the same for the twin without the finding.
        engine: the engine that finds it, or None for a finding about the files.
        target, mended_target: the targets; tensors, mended_tensors: weight headers or None.
        options: arguments of `check`, `mended_options` for the twin (default the same).
        says: text that the finding must hold: the figures.
    """

    code: str
    severity: str
    broken: Mapping[str, Any]
    mended: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    engine: str | None = NEW
    base: Mapping[str, Any] = dataclasses.field(default_factory=lambda: HEAD)
    target: Mapping[str, Any] = dataclasses.field(default_factory=lambda: GPT_OSS)
    mended_target: Mapping[str, Any] | None = None
    tensors: Mapping[str, Sequence[int]] | None = None
    mended_tensors: Mapping[str, Sequence[int]] | None = None
    d2t: Sequence[int] | None = None
    mended_d2t: Sequence[int] | None = None
    kind: Kind | None = None
    engines: tuple[str, ...] = ()
    mended_engines: tuple[str, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    mended_options: Mapping[str, Any] | None = None
    says: str = ""

    def report(self) -> CheckReport:
        """The check of the broken pair."""
        draft = draft_spec({**self.base, **self.broken}, self.tensors, self.d2t, self.kind)
        return check(draft, target_spec(self.target), engines=self._engines(self.engines), table=TABLE, **self.options)

    def mended_report(self) -> CheckReport:
        """The check of the mended pair."""
        tensors = self.tensors if self.mended_tensors is None else self.mended_tensors
        draft = draft_spec({**self.base, **self.mended}, tensors, self.mended_d2t)
        options = self.options if self.mended_options is None else self.mended_options
        engines = self._engines(self.mended_engines or self.engines)
        return check(draft, target_spec(self.mended_target or self.target), engines=engines, table=TABLE, **options)

    def _engines(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        return wanted or (self.engine or NEW,)


def draft_spec(
    config: Mapping[str, Any],
    tensors: Mapping[str, Sequence[int]] | None = None,
    d2t: Sequence[int] | None = None,
    kind: Kind | None = None,
) -> DraftSpec:
    """A draft out of a config (keys whose value is None are left out, `...` stands for null) and tensor shapes."""
    plain = {key: None if value is ... else value for key, value in config.items() if value is not None}
    facts = None
    if tensors is not None:
        infos = {name: TensorInfo(name, "BF16", tuple(shape), Path("model.safetensors")) for name, shape in tensors.items()}
        facts = TensorFacts(infos, (Path("model.safetensors"),), complete=True)
    return parse_draft(plain, name="draft", tensors=facts, d2t=d2t, kind=kind)


def target_spec(config: Mapping[str, Any]) -> TargetSpec:
    """A target out of a config."""
    return parse_target(config, name="target")


DFLASH: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "hidden_size": H,
    "num_hidden_layers": 3,
    "vocab_size": 201088,
    "dflash_config": {"target_layer_ids": [1, 17, 32]},
}
SMALL = {"draft_vocab_size": 4}
MLA: dict[str, Any] = {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}
ROPE = {"rope_theta": 500000.0}

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("ids-guessed", "warning", NO_IDS | {"norm_before_fc": False}, says="[2, 18, 33]"),
    Scenario("ids-not-read", "error", {IDS: None}, engine=VLLM, says="[2, 18, 33]"),
    Scenario("ids-conflict", "error", {IDS: [23, 29, 35]}, engine=None, says="[23, 29, 35]"),
    Scenario("ids-invalid", "error", ids([24, 30, -1]), engine=None, says="-1"),
    Scenario("convention-undecidable", "warning", ids([3, 19, 30]), engine=None, says="OUTPUT: [4, 20, 31]"),
    Scenario(
        "ids-shifted", "error", {}, engine=OLD, engines=(OLD,), mended_engines=("sglang==0.5.17",), says="1 boundary too late"
    ),
    Scenario(
        "ids-refused",
        "error",
        {},
        base=DFLASH | {"dflash_config": {"target_layer_ids": [1, 17, 35]}},
        mended=DFLASH,
        target=GPT_OSS | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"},
        says="IndexError",
    ),
    Scenario("ids-reordered", "error", ids([36, 24, 30]), says="[24, 30, 36] in place of [36, 24, 30]"),
    Scenario("ids-collapsed", "error", ids([24, 24, 36]), says="captured [24, 36]"),
    Scenario("state-unreachable", "error", {}, target=LLAMA, mended_target=GPT_OSS, says="captured [25, 31]"),
    Scenario(
        "state-corrupt",
        "error",
        ids([1, 17, 32]),
        target=GPT_OSS | {"architectures": ["Gemma3ForCausalLM"]},
        mended=ids([1, 17, 32]),
        mended_target=LLAMA,
        says="without the residual",
    ),
    Scenario(
        "default-too-shallow",
        "error",
        NO_IDS | {"norm_before_fc": False},
        target=LLAMA | {"num_hidden_layers": 4},
        mended_target=LLAMA,
        mended=NO_IDS | {"norm_before_fc": False},
        says="[2, 2, 1]",
    ),
    Scenario("engines-disagree", "warning", ids([3, 19, 30]), engine=None, engines=(NEW, VLLM), says="[4, 20, 31]"),
    Scenario("aux-state-off", "info", eagle(use_aux_hidden_state=False), engine=None, says="POST_NORM"),
    Scenario("eagle3-served-as-eagle", "error", {}, kind="eagle", says="EAGLE"),
    Scenario(
        "target-unsupported",
        "error",
        {},
        target=GPT_OSS | {"architectures": ["Glm4MoeForCausalLM"]},
        engine=VLLM,
        mended_target=GPT_OSS,
        says="does not support EAGLE3",
    ),
    Scenario(
        "target-unprofiled", "warning", {}, engine="onnxruntime-genai", engines=("onnxruntime-genai",), mended_engines=(NEW,)
    ),
    Scenario("draft-unsupported", "error", {"architectures": ["OtherEagle3Head"]}, says="OtherEagle3Head"),
    Scenario(
        "draft-unprofiled", "warning", {"architectures": ["OtherEagle3Head"]}, engine="vllm==0.24.0", says="OtherEagle3Head"
    ),
    Scenario(
        "version-unprofiled",
        "warning",
        {},
        engine="sglang==0.5.20",
        engines=("sglang==0.5.20",),
        mended_engines=(NEW,),
        says="0.5.17",
    ),
    Scenario("width-mismatch", "error", {}, engine=OLD, engines=(OLD,), mended_engines=(NEW,), says="5760 and 8640"),
    Scenario(
        "width-source-differs",
        "error",
        {"eagle_config": None, IDS: [3, 19, 30, 33]},
        engine=VLLM,
        mended=ids([3, 19, 30, 33]),
        says="4 against 3",
    ),
    Scenario("target-hidden-size-null", "error", {"target_hidden_size": ...}, mended={"target_hidden_size": H}, says="2880"),
    Scenario("target-mismatch", "error", {"target_hidden_size": 4096}, engine=None, says="4096"),
    Scenario(
        "norm-ignored",
        "error",
        eagle(norm_before_fc=True),
        mended=eagle(norm_before_fc=True),
        engine=OLD,
        engines=(OLD,),
        mended_engines=(NEW,),
        says="no such setting",
    ),
    Scenario(
        "norms-both-set", "error", eagle(norm_before_fc=True) | {"fc_norm": True}, mended=eagle(norm_before_fc=True), engine=None
    ),
    Scenario(
        "norm-weight-without-flag",
        "error",
        {},
        mended=eagle(norm_before_fc=True),
        engine=None,
        tensors=TENSORS | {"input_norm.weight": (3 * H,)},
        says="8640",
    ),
    Scenario(
        "norm-flag-without-weight",
        "error",
        eagle(norm_before_fc=True),
        mended=eagle(norm_before_fc=True),
        engine=None,
        tensors=TENSORS,
        mended_tensors=TENSORS | {"input_norm.weight": (3 * H,)},
    ),
    Scenario("weight-unread", "warning", {}, tensors=TENSORS | {"adapter.weight": (H, H)}, mended_tensors=TENSORS, says="1 of 9"),
    Scenario(
        "weight-missing",
        "error",
        {},
        tensors={k: v for k, v in TENSORS.items() if k != "fc.weight"},
        mended_tensors=TENSORS,
        engine=None,
        says="fc.weight",
    ),
    Scenario("weights-not-read", "info", {}, engine=None, mended_tensors=TENSORS),
    Scenario(
        "lm-head-missing",
        "error",
        {},
        mended={"draft_vocab_size": None},
        says="201088",
        tensors={k: v for k, v in TENSORS.items() if k != "lm_head.weight"},
    ),
    Scenario(
        "weight-shape",
        "error",
        {"draft_vocab_size": 32000},
        engine=None,
        tensors=TENSORS | {"d2t": (32000,)},
        mended={"draft_vocab_size": 32000},
        mended_tensors=TENSORS | {"d2t": (32000,), "lm_head.weight": (32000, H)},
        says="32000 against 201088",
    ),
    Scenario(
        "d2t-missing",
        "error",
        SMALL,
        engine=None,
        tensors=TENSORS,
        mended=SMALL,
        mended_tensors=TENSORS | {"d2t": (4,)},
        says="4 of 201088",
    ),
    Scenario(
        "d2t-out-of-range",
        "error",
        SMALL,
        engine=None,
        tensors=TENSORS | {"d2t": (4,)},
        d2t=[0, 0, 0, 201085],
        mended=SMALL,
        mended_d2t=[0, 0, 0, 201084],
        says="201088",
    ),
    Scenario(
        "d2t-absolute",
        "error",
        {"draft_vocab_size": 8},
        engine=None,
        tensors=TENSORS | {"d2t": (8,)},
        d2t=list(range(8)),
        mended={"draft_vocab_size": 8},
        mended_d2t=[0] * 8,
        says="arange",
    ),
    Scenario(
        "head-dim-ignored",
        "error",
        {"head_dim": 128},
        mended={"head_dim": 64},
        engine="made-up==1",
        engines=("made-up==1",),
        says="64 against 128",
    ),
    Scenario("attention-bias-ignored", "error", {"attention_bias": True}, mended={"attention_bias": False}),
    Scenario("rope-theta-ignored", "error", MLA | ROPE, mended=MLA, engine="vllm==0.24.0", says="500000"),
    Scenario(
        "rope-scaling-ignored",
        "error",
        MLA | {"rope_parameters": {"rope_type": "yarn", "factor": 32}},
        engine="vllm==0.24.0",
        mended=MLA | {"rope_scaling": {"rope_type": "yarn", "factor": 32}},
        says="yarn",
    ),
    Scenario(
        "rope-conflict", "error", ROPE | {"rope_parameters": {"rope_theta": 10000.0}}, mended=ROPE, engine=None, says="10000"
    ),
    Scenario("sliding-window-ignored", "error", {"sliding_window": 128, "layer_types": ["sliding_attention"]}, says="128"),
    Scenario("pipeline-drops-ids", "error", {}, options={"pp_size": 2}, mended_options={}, says="refuses"),
    Scenario(
        "pipeline-unchecked",
        "warning",
        ids([3, 19, 30]),
        engine="tokenspeed",
        engines=("tokenspeed",),
        options={"pp_size": 2},
        mended_options={},
        says="[4]",
    ),
)
