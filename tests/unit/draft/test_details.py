"""Where a head lies, how exact its angles are, and the figures in its refusals."""

from __future__ import annotations

import math
import re

import pytest
import torch

from specalign.draft import DraftError, DraftVocab, Eagle3Head, RopeConfig, build_eagle3, parse_eagle3_config
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
