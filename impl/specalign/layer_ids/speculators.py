"""Configs in speculators' own format, as an engine sees them that converts them on load.

Such a config keeps the settings of the draft's layer in `transformer_layer_config`, states boundaries, and names no engine's
class. Source: vLLM's `transformers_utils/configs/speculators/algos.py`, 0.33.0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from specalign.layer_ids.draft_config import EAGLE3_IDS, LAYER_CONFIG, DraftSpec
from specalign.layer_ids.places import int_or_none

_ARCHITECTURES: Final[Mapping[tuple[str, str], str]] = {
    ("eagle3", "llama"): "Eagle3LlamaForCausalLM",
    ("eagle3", "qwen3"): "Eagle3Qwen3ForCausalLM",
    ("peagle", "llama"): "PeagleLlamaForCausalLM",
    ("peagle", "qwen3"): "PeagleQwen3ForCausalLM",
}
_BY_TYPE: Final[Mapping[str, str]] = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "dspark": "Qwen3DSparkModel"}


def converted(draft: DraftSpec) -> DraftSpec:
    """`draft` as it reads after conversion; a head in any other format comes back unchanged."""
    if not draft.is_speculators:
        return draft
    layer = draft.config.get(LAYER_CONFIG)
    inner: dict[str, Any] = dict(layer) if isinstance(layer, Mapping) else {}
    top = {key: value for key, value in draft.config.items() if value is not None and key != LAYER_CONFIG}
    config = {**inner, **top, **_ids(draft)}
    if draft.kind == "eagle3":
        config.setdefault("norm_before_residual", True)
    model, kind = inner.get("model_type", "llama"), draft.config.get("speculators_model_type")
    architecture = _ARCHITECTURES.get((str(kind), str(model)), _BY_TYPE.get(str(kind), draft.architecture))
    return dataclasses.replace(draft, config=config, architecture=architecture, converted=True)


def _ids(draft: DraftSpec) -> dict[str, Any]:
    """DFlash and DSpark ids stand at both places that engines read: boundaries as they are, block outputs one lower."""
    ids = draft.config.get("aux_hidden_state_layer_ids")
    if draft.kind == "eagle3" or not isinstance(ids, list) or any(int_or_none(k) is None for k in ids):
        return {}
    dflash = draft.config.get("dflash_config")
    return {
        EAGLE3_IDS: ids,
        "dflash_config": {**(dflash if isinstance(dflash, Mapping) else {}), "target_layer_ids": [k - 1 for k in ids]},
    }
