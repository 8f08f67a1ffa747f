"""The library's own draft head keeps the contract, and the contract's arithmetic agrees with torch's and with hand-made numbers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("hypothesis")
torch = pytest.importorskip("torch")

from hypothesis import settings  # noqa: E402
from torch import Tensor  # noqa: E402

from pytest_specalign.contracts import DraftNormContract  # noqa: E402
from pytest_specalign.contracts import draft_heads as heads  # noqa: E402
from pytest_specalign.contracts.draft_heads import DraftCase  # noqa: E402
from specalign.draft import FcInput, RMSNorm, build_eagle3, make_vocab, parse_eagle3_config  # noqa: E402


class TestSpecalign(DraftNormContract):
    settings = settings(max_examples=30, deadline=None)

    def combine(self, config: dict[str, Any], weights: dict[str, Tensor], states: list[Tensor]) -> Tensor:
        module = FcInput(parse_eagle3_config(config)).to(states[0])
        module.load_state_dict(weights)
        with torch.no_grad():
            return module(states)

    def fc_input(self, config: dict[str, Any], weights: dict[str, Tensor], states: list[Tensor]) -> Tensor:
        width = sum(state.shape[-1] for state in states)
        square = parse_eagle3_config(config)
        module = FcInput(square).to(states[0])
        module.load_state_dict(weights)
        module.fc = torch.nn.Linear(width, width, bias=False).to(states[0])
        with torch.no_grad():
            module.fc.weight.copy_(torch.eye(width))
            return module(states)

    def outputs(self, config: dict[str, Any], weights: dict[str, Tensor], hidden: Tensor) -> tuple[Tensor, Tensor]:
        parsed = parse_eagle3_config(config)
        norm = RMSNorm(parsed.hidden_size, eps=parsed.rms_norm_eps).to(hidden)
        norm.load_state_dict({"weight": weights["norm.weight"]})
        with torch.no_grad():
            normed = norm(hidden)
        return normed, normed if parsed.norm_output else hidden

    def map_tokens(self, d2t: Tensor, draft_tokens: Tensor) -> Tensor:
        return make_vocab(size=len(d2t), target_size=heads.VOCABULARY, d2t=d2t).to_target(draft_tokens)

    def load(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
        return build_eagle3(parse_eagle3_config(config), tensors)


def test_whole_and_per_chunk_are_told_apart_by_the_scales() -> None:
    """[3, 4] and [30, 40]: per chunk both are [3, 4] / sqrt(12.5); over the whole the first is ten times smaller."""
    x = torch.tensor([[3.0, 4.0, 30.0, 40.0]], dtype=torch.float64)
    case = DraftCase("both", chunks=2, width=2, eps=1e-12)
    ones = {"input_norm.weight": torch.ones(4), "fc_norm.0.weight": torch.ones(2), "fc_norm.1.weight": torch.ones(2)}
    per_chunk, whole = heads.norm_chunks(x, case, ones), heads.norm_whole(x, case, ones)
    torch.testing.assert_close(per_chunk, torch.tensor([[3.0, 4, 3, 4]], dtype=torch.float64) / 12.5**0.5)
    torch.testing.assert_close(whole, x / 631.25**0.5)


@pytest.mark.parametrize("norms", ["none", "whole", "chunk", "both"])
def test_the_reference_is_torchs_rms_norm(norms: Any) -> None:
    case = DraftCase(norms, chunks=4, width=12, eps=1e-5, seed=3)
    weights, states = case.weights(), case.states()
    x = torch.cat(states, -1)
    if case.whole:
        x = torch.nn.functional.rms_norm(x, (48,), weights["input_norm.weight"], 1e-5)
    if case.per_chunk:
        parts = [
            torch.nn.functional.rms_norm(c, (12,), weights[f"fc_norm.{i}.weight"], 1e-5) for i, c in enumerate(x.chunk(4, -1))
        ]
        x = torch.cat(parts, -1)
    torch.testing.assert_close(heads.fc_input(case, weights, states), x, rtol=1e-12, atol=1e-12)


def test_the_norms_make_a_difference_far_above_the_tolerance() -> None:
    made = {}
    for norms in ("none", "whole", "chunk", "both"):
        both = DraftCase("both", seed=5)
        made[norms] = heads.fc_input(DraftCase(norms, seed=5), both.weights(), both.states())
    names = list(made)
    apart = [float((made[a] - made[b]).abs().max()) for i, a in enumerate(names) for b in names[i + 1 :]]
    assert min(apart) > 0.1


def test_offsets_stay_inside_the_vocabulary_and_name_each_token_once() -> None:
    case = DraftCase(vocabulary=40)
    targets = heads.offsets(case) + torch.arange(40)
    assert targets.unique().numel() == 40
    assert int(targets.min()) >= 0
    assert int(targets.max()) < heads.VOCABULARY
