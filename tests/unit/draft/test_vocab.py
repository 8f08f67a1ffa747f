"""d2t and t2d: offsets, and every way to get them wrong."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specalign.draft import DraftError, make_vocab

from .heads import TARGETS, offsets


def test_offsets_are_added_to_draft_tokens() -> None:
    vocab = make_vocab(size=12, target_size=40, d2t=offsets())
    assert vocab.to_target(torch.arange(12)).tolist() == TARGETS
    assert vocab.to_target(torch.tensor([[11], [2]], dtype=torch.int32)).tolist() == [[39], [4]]


def test_logits_are_scattered_to_their_target_tokens() -> None:
    vocab = make_vocab(size=12, target_size=40, d2t=offsets())
    logits = torch.arange(24.0).reshape(2, 12)
    wide = vocab.scatter(logits)
    assert wide.shape == (2, 40)
    for row in range(2):
        for token in range(40):
            want = float(logits[row, TARGETS.index(token)]) if token in TARGETS else -math.inf
            assert float(wide[row, token]) == want


def test_a_full_vocabulary_needs_no_table_and_changes_nothing() -> None:
    for d2t in (None, torch.zeros(40, dtype=torch.int64)):
        vocab = make_vocab(size=40, target_size=40, d2t=d2t, t2d=torch.ones(40, dtype=torch.bool))
        tokens, logits = torch.arange(40), torch.rand(1, 40)
        assert vocab.to_target(tokens) is tokens
        assert vocab.scatter(logits) is logits


def test_zeros_in_a_small_vocabulary_mean_the_first_tokens() -> None:
    vocab = make_vocab(size=5, target_size=40, d2t=torch.zeros(5, dtype=torch.int32))
    assert vocab.to_target(torch.arange(5)).tolist() == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(0, 299), min_size=1, max_size=60, unique=True))
def test_every_set_of_target_tokens_survives(tokens: list[int]) -> None:
    targets = torch.tensor(sorted(tokens))
    kept = torch.zeros(300, dtype=torch.bool)
    kept[targets] = True
    table = targets - torch.arange(len(targets))
    if len(targets) > 1 and table.tolist() == list(range(len(targets))):
        return  # tokens 0, 2, 4, ...: a table that is arange, which is refused as the mistake that it nearly always is
    vocab = make_vocab(size=len(targets), target_size=300, d2t=table, t2d=kept)
    assert vocab.to_target(torch.arange(len(targets))).tolist() == sorted(tokens)


def good() -> dict[str, object]:
    kept = torch.zeros(40, dtype=torch.bool)
    kept[torch.tensor(TARGETS)] = True
    return {"size": 12, "target_size": 40, "d2t": offsets(), "t2d": kept, "model_size": 40}


def changed(tensor: torch.Tensor, index: int, value: object) -> torch.Tensor:
    made = tensor.clone()
    made[index] = value
    return made


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a: {"d2t": None}, "12 of 40 tokens and no d2t"),
        (lambda a: {"d2t": a["d2t"][:-1]}, r"shape \[11\], the draft vocabulary has 12"),
        (lambda a: {"d2t": torch.cat([a["d2t"], a["d2t"][-1:]])}, r"shape \[13\]"),
        (lambda a: {"d2t": a["d2t"][None]}, r"shape \[1, 12\]"),
        (lambda a: {"d2t": a["d2t"].float()}, "torch.float32, no table of integers"),
        (lambda a: {"d2t": a["d2t"] > 0}, "torch.bool, no table of integers"),
        (lambda a: {"d2t": torch.arange(12)}, r"target tokens or arange, not offsets: it ascends from 0 to 11"),
        (lambda a: {"d2t": torch.tensor(TARGETS)}, r"last draft token would be 50 of 40; store d2t - arange\(12\)"),
        (lambda a: {"d2t": changed(a["d2t"], 11, 29)}, r"in 1 places, first d2t\[11\]: 11 \+ 29 = 40 of 40"),
        (lambda a: {"d2t": changed(a["d2t"], 0, -1)}, r"first d2t\[0\]: 0 \+ -1 = -1"),
        (lambda a: {"d2t": changed(a["d2t"], 1, -1)}, "12 draft tokens to 11 target tokens"),
        (lambda a: {"target_size": 12, "t2d": None}, r"d2t moves 10 of 12 tokens in a head with the full vocabulary"),
        (lambda a: {"model_size": 39}, "draft tokens reach target token 39, and the target at hand has 39"),
        (lambda a: {"t2d": a["t2d"][:-1]}, r"t2d is torch.bool \[39\]"),
        (lambda a: {"t2d": a["t2d"].double()}, "t2d is torch.float64"),
        (lambda a: {"t2d": a["t2d"].int() * 2}, "numbers other than 0 and 1"),
        (lambda a: {"t2d": changed(a["t2d"], 4, False)}, "disagree about 1 of 40 target tokens, first token 4"),
        (lambda a: {"t2d": changed(a["t2d"], 2, True)}, "disagree about 1 of 40 target tokens, first token 2"),
        (lambda a: {"size": 41}, "41 tokens for a target vocabulary of 40"),
        (lambda a: {"size": 0}, "it must be 1..40"),
    ],
)
def test_each_fault_of_the_tables_is_refused(change, says: str) -> None:  # type: ignore[no-untyped-def]
    arguments = good()
    make_vocab(**arguments)
    make_vocab(**{**arguments, "t2d": arguments["t2d"].long()})  # type: ignore[attr-defined]
    with pytest.raises(DraftError, match=says):
        make_vocab(**{**arguments, **change(arguments)})


def test_token_ids_are_found_in_a_long_table_even_when_they_fit_as_offsets() -> None:
    tokens = torch.arange(300) * 3 + 1
    with pytest.raises(DraftError, match="target tokens or arange"):
        make_vocab(size=300, target_size=128256, d2t=tokens)
    assert make_vocab(size=300, target_size=128256, d2t=tokens // 5).targets is not None
