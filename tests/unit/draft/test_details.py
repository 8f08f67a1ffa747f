"""Where a head lies, how exact its angles are, and the figures in its refusals."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

from specalign.draft import (
    DraftError,
    DraftVocab,
    Eagle3Head,
    RopeConfig,
    build_eagle3,
    parse_eagle3_config,
    read_eagle3_config,
)
from specalign.draft.rope import Rotary

from .heads import config_dict, random_tensors


def devices(head: torch.nn.Module) -> set[str]:
    return {parameter.device.type for parameter in head.parameters()}


def test_every_parameter_lies_on_the_device_that_was_asked_for() -> None:
    raw = config_dict(fc_norm=True, norm_before_fc=True, num_hidden_layers=2)
    config, tensors = parse_eagle3_config(raw), random_tensors(raw, fc_norm=True, input_norm=True)
    assert devices(Eagle3Head(config, DraftVocab(12, 40, torch.arange(12)), device="meta")) == {"meta"}
    assert devices(build_eagle3(config, tensors, device="meta")) == {"meta"}
    assert devices(build_eagle3(config, tensors)) == {"cpu"}


@pytest.mark.parametrize("position", [0, 1, 12_345, 1_000_003])
def test_angles_of_a_float64_head_are_computed_in_float64(position: int) -> None:
    # Head dimension 4 and theta 2^16 give the frequencies 1 and 2^-8, which float32 holds exactly.
    cos, sin = Rotary(RopeConfig(theta=65536.0), 4)(torch.tensor([position]), torch.float64)
    angles = [position * 1.0, position / 256] * 2
    torch.testing.assert_close(cos[0], torch.tensor([math.cos(a) for a in angles], dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(sin[0], torch.tensor([math.sin(a) for a in angles], dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_vocabulary_of_other_sizes_is_refused_with_both() -> None:
    says = "a vocabulary of 11 of 39 tokens for a head with 12 of 40; make it with the sizes of the config"
    with pytest.raises(DraftError, match=f"^{re.escape(says)}$"):
        Eagle3Head(parse_eagle3_config(config_dict()), DraftVocab(11, 39, torch.arange(11)))


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rope_settings_that_are_no_object_are_shown_up_to_60_characters(key: str) -> None:
    for value, shown in ((7, "'7'"), (["yarn"], "\"['yarn']\""), ("y" * 61, "'" + "y" * 60 + "'")):
        says = f"my head: {key} must be an object, not {shown}"
        with pytest.raises(DraftError, match=f"^{re.escape(says)}$"):
            parse_eagle3_config(config_dict(**{key: value}), name="my head")


def test_tied_embeddings_with_a_draft_vocabulary_say_which_two_keys_clash() -> None:
    says = (
        "my head: this draft config cannot be: tie_word_embeddings with draft_vocab_size 12 of 40: the rows of embed_tokens are"
        " target tokens, not draft tokens; drop one of the two keys"
    )
    with pytest.raises(DraftError, match=f"^{re.escape(says)}$"):
        parse_eagle3_config(config_dict(tie_word_embeddings=True), name="my head")


def test_a_config_file_that_cannot_be_is_refused_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config_dict(hidden_size=...)), encoding="utf-8")
    for path in (file, tmp_path):
        with pytest.raises(DraftError, match=f"^{re.escape(str(path))}: no hidden_size in this config"):
            read_eagle3_config(path)


def test_weights_whose_dtype_will_not_do_are_refused_by_the_name_of_the_head() -> None:
    raw = config_dict()
    config, tensors = parse_eagle3_config(raw), random_tensors(raw)
    for dtype, says in (
        (torch.float16, "weights of several dtypes"),
        (torch.float8_e4m3fn, "fc.weight is torch.float8_e4m3fn: quantized weights are not supported"),
    ):
        with pytest.raises(DraftError, match=f"^my head: {says}"):
            build_eagle3(config, {**tensors, "fc.weight": tensors["fc.weight"].to(dtype)}, name="my head")


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 3, 1)])
def test_positions_of_another_shape_are_refused_with_both_that_would_do(shape: tuple[int, ...]) -> None:
    head, tokens = Eagle3Head(parse_eagle3_config(config_dict(draft_vocab_size=40))), torch.zeros(2, 3, dtype=torch.long)
    says = f"positions torch.int64 {list(shape)} for tokens [2, 3]; give int positions of the same shape, or [3]"
    with pytest.raises(DraftError, match=f"^{re.escape(says)}$"):
        head(tokens, torch.zeros(2, 3, 16), torch.zeros(shape, dtype=torch.long))
