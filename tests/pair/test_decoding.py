"""On the real pair greedy draft–verify decoding says what plain decoding says: token for token in float32, up to ties in bfloat16."""

from __future__ import annotations

import pytest
import torch

from specalign.integrations.transformers_target import TransformersTarget
from specalign.speculate import TreeShape, decode_plain, decode_speculative

from .conftest import TRAINED_ON, head_of

NAMES = ("humaneval-3", "dialogue-0", "dialogue-5")
NEW = 40


@pytest.fixture(scope="module")
def plain(target: TransformersTarget, tokens: dict[str, list[int]]) -> list[tuple[int, ...]]:
    found = [decode_plain(target, [tokens[name]], NEW)[0].tokens for name in NAMES]
    with torch.no_grad():
        said = target.model.generate(  # type: ignore[operator]
            torch.tensor([tokens["dialogue-0"]]), max_new_tokens=NEW, do_sample=False,
            attention_mask=torch.ones(1, len(tokens["dialogue-0"])),
        )  # fmt: skip
    assert found[1] == tuple(said[0, len(tokens["dialogue-0"]) :].tolist())  # transformers' own generate
    return found


@pytest.mark.parametrize("name", TRAINED_ON)
@pytest.mark.parametrize("shape", [TreeShape(4), TreeShape(4, 3, 10)], ids=["chain", "tree"])
def test_float32(
    name: str, shape: TreeShape, target: TransformersTarget, tokens: dict[str, list[int]], plain: list[tuple[int, ...]]
) -> None:
    given = [tokens[item] for item in NAMES]
    found = decode_speculative(target, head_of(name, target), TRAINED_ON[name], given, NEW, shape=shape)
    assert [item.tokens for item in found] == plain
    assert sum(round.accepted for item in found for round in item.rounds) > 20  # a drafter that works


def test_bfloat16_differs_at_ties_alone(target: TransformersTarget, tokens: dict[str, list[int]], place) -> None:  # type: ignore[no-untyped-def]
    """Where the two first differ, the target's two best logits lie within one bfloat16 ULP of each other."""
    from specalign.integrations.transformers_target import load_target

    half, _ = load_target(place, dtype=torch.bfloat16)
    head = head_of("B", half, torch.bfloat16)
    for name in NAMES:
        one = decode_plain(half, [tokens[name]], NEW)[0].tokens
        other = decode_speculative(half, head, TRAINED_ON["B"], [tokens[name]], NEW)[0].tokens
        at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        if at is None:
            assert len(one) == len(other)
            continue
        with torch.no_grad():
            logits = half.model(torch.tensor([[*tokens[name], *one[:at]]])).logits[0, -1].float()
        best = logits.topk(2).values
        ulp = 2.0 ** (torch.floor(torch.log2(best[0].abs())).item() - 7)
        assert float(best[0] - best[1]) <= 2 * ulp, (name, at, best)
        assert {one[at], other[at]} <= set(logits.topk(3).indices.tolist())
