"""The fault that this project began with, on SGLang's own classes: a GPT-OSS-120B-shaped target and NVIDIA's v3 head.

The head's ids [24, 30, 36] are boundaries of a 36-layer target. SGLang up to 0.5.16 always added 1 and had no capture after the
last block, so one of three states never arrived, and the first request died with 5760 features in front of an fc for 8640.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from specalign.layer_ids.captured import Captured, capture_ids
from specalign.layer_ids.engines import load_engines
from tests.conformance.sglang_cpu.draft import HEAD, forward, make_head, random_weights
from tests.conformance.sglang_cpu.targets import TOKENS, Target, captured, gpt_oss_config, handed_on, make_target

LAYERS: Final = 36
HIDDEN: Final = 2880
IDS: Final = (24, 30, 36)
OLD: Final = "sglang==0.5.16"
THIN: Final[dict[str, Any]] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 256,
}
V3: Final[dict[str, Any]] = HEAD | THIN | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(IDS)}}
"""The v3 head as 0.5.16 reads it: the version knows no norm_before_fc."""

V3_NORMED: Final[dict[str, Any]] = V3 | {"eagle_config": {**V3["eagle_config"], "norm_before_fc": True}}
"""The v3 head as its file has it."""

MEMORY_KIB: Final = 6 * 1024**2


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """36 layers, 2880 wide, thin otherwise: 2 heads, 2 experts, 256 tokens."""
    config = gpt_oss_config(**THIN, num_hidden_layers=LAYERS, num_local_experts=2, num_experts_per_tok=2)
    folder: Path = tmp_path_factory.mktemp("gpt_oss")
    return make_target(config, folder, std=0.01)


def old_capture() -> Captured:
    """What 0.5.16 makes of the ids, as the profile of that version says."""
    row = load_engines().profile(OLD, kind="eagle3", family="gpt_oss", architecture=HEAD["architectures"][0]).capture
    assert row is not None
    return capture_ids(row, IDS, LAYERS)


def states_under_the_old_rule(target: Target) -> list[torch.Tensor]:
    """0.5.16's setter stores the boundaries that it takes the ids for; none of them is after the last block."""
    target.engine.capture_aux_hidden_states = True
    target.engine.model.layers_to_capture = [25, 31, 37]
    return handed_on(target.engine)


def largest(got: list[torch.Tensor], target: Target, states: tuple[int, ...]) -> float:
    assert len(got) == len(states)
    return max(float((one - target.boundaries[b]).abs().max()) for one, b in zip(got, states, strict=True))


def test_the_old_rule_hands_on_two_shifted_states(target: Target) -> None:
    predicted = old_capture()
    assert (predicted.named, predicted.states, predicted.lost) == ((25, 31, 37), (25, 31), (37,))
    assert largest(states_under_the_old_rule(target), target, (25, 31)) <= 1e-5


def test_the_old_rule_dies_at_the_first_forward_of_the_head(target: Target) -> None:
    states = torch.cat(states_under_the_old_rule(target), dim=-1)
    head = make_head(V3, random_weights(V3))
    assert head.model.fc.weight.shape == (HIDDEN, 3 * HIDDEN)
    with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes cannot be multiplied \(12x5760 and 8640x2880\)"):
        forward(head, TOKENS, states)


def test_the_norm_before_fc_meets_it_first_where_it_is_known(target: Target) -> None:
    states = torch.cat(states_under_the_old_rule(target), dim=-1)
    head = make_head(V3_NORMED, random_weights(V3_NORMED))
    with pytest.raises(ValueError, match=r"8640.*5760"):
        forward(head, TOKENS, states)


@pytest.mark.parametrize("config", [V3, V3_NORMED], ids=["no norm", "norm_before_fc"])
def test_the_new_rule_runs(target: Target, config: dict[str, Any]) -> None:
    got = captured(target.engine, IDS)
    assert largest(got, target, IDS) <= 1e-5
    drafted = forward(make_head(config, random_weights(config)), TOKENS, torch.cat(got, dim=-1))
    assert drafted.logits.shape == (len(TOKENS), config["draft_vocab_size"])
    assert drafted.logits.isfinite().all()


def test_a_shift_by_one_would_be_seen(target: Target) -> None:
    got = captured(target.engine, IDS)
    assert min(largest(got, target, wrong) for wrong in ((25, 31, 36), (23, 29, 35), (24, 30, 35))) > 0.01


def test_memory_stays_small() -> None:
    """Peak resident memory of this process so far: the target, its twin in transformers and the heads included."""
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < MEMORY_KIB
