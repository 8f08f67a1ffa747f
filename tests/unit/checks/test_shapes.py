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


def wrong(config: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> list[tuple[str, str, str]]:
    found = check(draft_spec(config, tensors), target_spec(GPT_OSS), engines=["sglang"]).of(None)
    return [(f.where, f.how_much, f.what) for f in found if f.code == "weight-shape"]


def test_a_head_whose_shapes_fit_is_clean() -> None:
    assert codes(HEAD | SMALL, TENSORS | D2T | HEAD_32K) == set()


VOCABULARY = "the draft vocabulary (draft_vocab_size, else vocab_size)"


@pytest.mark.parametrize(
    ("config", "tensors", "where", "how_much", "what"),
    [
        ({"draft_vocab_size": 16000}, D2T, "d2t [32000]", "16000 against 32000", f"d2t does not fit {VOCABULARY}"),
        (SMALL, {"d2t": (3,)} | HEAD_32K, "d2t [3]", "32000 against 3", f"d2t does not fit {VOCABULARY}"),
        ({"draft_vocab_size": None}, D2T, "d2t [32000]", "201088 against 32000", f"d2t does not fit {VOCABULARY}"),
        (
            SMALL,
            D2T,
            "lm_head.weight [201088, 2880]",
            "32000 against 201088",
            "lm_head.weight does not fit the draft vocabulary and hidden_size",
        ),
        (
            {},
            {"lm_head.weight": (201088, 4096)},
            "lm_head.weight [201088, 4096]",
            "2880 against 4096",
            "lm_head.weight does not fit the draft vocabulary and hidden_size",
        ),
        (
            {"draft_vocab_size": 201089},
            {},
            "draft_vocab_size",
            "201089 against 201088",
            "draft_vocab_size does not fit a vocabulary of vocab_size tokens",
        ),
        (
            {},
            {"fc.weight": (4096, 3 * H)},
            "fc.weight [4096, 8640]",
            "2880 against 4096",
            "fc.weight does not fit hidden_size",
        ),
        (
            eagle(norm_before_fc=True),
            {"input_norm.weight": (H,)},
            "input_norm.weight [2880]",
            "8640 against 2880",
            "input_norm.weight does not fit the inputs of fc.weight",
        ),
    ],
)
def test_a_shape_that_does_not_fit_is_an_error(
    config: dict[str, Any], tensors: dict[str, tuple[int, ...]], where: str, how_much: str, what: str
) -> None:
    assert (where, how_much, what) in wrong(HEAD | config, TENSORS | tensors)


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        (SMALL, D2T | HEAD_32K),
        ({"draft_vocab_size": 201088}, {}),
        ({"draft_vocab_size": 300000, "vocab_size": None}, {"lm_head.weight": (300000, H)}),
        ({"draft_vocab_size": None, "vocab_size": None}, {"lm_head.weight": (5, H)}),
        ({"hidden_size": None, "target_hidden_size": H}, {"fc.weight": (4096, 3 * H)}),
        ({}, {"fc.weight": (4096,)}),
        ({}, {"lm_head.weight": (5, 5, 5)}),
        (eagle(norm_before_fc=True), {"input_norm.weight": (3 * H,)}),
        (eagle(norm_before_fc=True), {"input_norm.weight": (7,), "fc.weight": (H,)}),
    ],
)
def test_a_shape_that_fits_or_that_nothing_fixes_is_right(config: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> None:
    assert wrong(HEAD | config, TENSORS | tensors) == []


def test_shapes_of_other_kinds_are_not_known() -> None:
    dflash = HEAD | {"architectures": ["DFlashDraftModel"]}
    assert wrong(dflash, TENSORS | {"fc.weight": (4096, 3 * H)}) == []


def test_a_layer_without_attention_is_missing_weights() -> None:
    bare = {name: shape for name, shape in TENSORS.items() if "self_attn" not in name and "mlp" not in name}
    assert "weight-missing" in codes(HEAD, bare | {"midlayer.hidden_norm.weight": (H,)})


def test_a_vocabulary_smaller_than_the_targets_needs_d2t() -> None:
    config = HEAD | {"vocab_size": 32000, "draft_vocab_size": 32000}
    assert "d2t-missing" in codes(config, TENSORS | HEAD_32K)
