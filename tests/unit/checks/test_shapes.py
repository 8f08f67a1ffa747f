"""Shapes in the weight headers against the config: every way in which they can disagree."""

from __future__ import annotations

from typing import Any

import pytest

from specalign.layer_ids.preflight import check
from tests.unit.checks.scenarios import GPT_OSS, HEAD, TENSORS, H, draft_spec, eagle, target_spec

D2T = {"d2t": (32000,)}
HEAD_32K = {"lm_head.weight": (32000, H)}
SMALL = {"draft_vocab_size": 32000}


def codes(config: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> set[str]:
    report = check(
        draft_spec(config, tensors, d2t=[0] * 32000 if "d2t" in tensors else None), target_spec(GPT_OSS), engines=["sglang"]
    )
    return {f.code for f in report.of(None)}


def test_a_head_whose_shapes_fit_is_clean() -> None:
    assert codes(HEAD | SMALL, TENSORS | D2T | HEAD_32K) == set()


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        ({"draft_vocab_size": 16000}, TENSORS | D2T | HEAD_32K),
        (SMALL, TENSORS | {"d2t": (3,)} | HEAD_32K),
        (SMALL, TENSORS | D2T),
        ({"draft_vocab_size": None}, TENSORS | D2T | HEAD_32K),
        ({"draft_vocab_size": 300000}, TENSORS),
        ({}, TENSORS | {"fc.weight": (4096, 3 * H)}),
        (eagle(norm_before_fc=True), TENSORS | {"input_norm.weight": (H,)}),
    ],
)
def test_a_shape_that_does_not_fit_is_an_error(config: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> None:
    assert "weight-shape" in codes(HEAD | config, tensors)


def test_a_layer_without_attention_is_missing_weights() -> None:
    bare = {name: shape for name, shape in TENSORS.items() if "self_attn" not in name and "mlp" not in name}
    assert "weight-missing" in codes(HEAD, bare | {"midlayer.hidden_norm.weight": (H,)})


def test_a_vocabulary_smaller_than_the_targets_needs_d2t() -> None:
    config = HEAD | {"vocab_size": 32000, "draft_vocab_size": 32000}
    assert "d2t-missing" in codes(config, TENSORS | HEAD_32K)
