"""What the scenarios are made of: the configs that most tests of the checks start from, and `Scenario` itself."""

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
NESTED = f"eagle_config.{IDS}"

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
        where, how_much: of the finding, whole; both follow from the figures above and from the rule of the engine.
        says: text that its first sentence must hold; advice: text that its next step must hold.
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
    where: str = ""
    how_much: str = ""
    says: str = ""
    advice: str = ""

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
