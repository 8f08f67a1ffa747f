"""What a draft–verify run counted: rounds, each with drafts proposed, drafts accepted and tokens gained.

One definition serves the real loop, the replay of a stored run and what engines report. A **round** is one verification: the
target looks at the drafts after the last known token, accepts the longest prefix that it would have said itself, and adds one
token of its own. The token that prefill gives belongs to no round. So a dead drafter gains exactly 1 token a round, a chain of k
drafts at most k + 1. After the end token nothing counts: a round whose accepted draft is the end token gains no further token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

from specalign.acceptance.errors import AcceptanceError


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """One verification.

    Attributes:
        proposed: drafts that the target looked at along the accepted path: the depth of a tree, the length of a chain.
        accepted: drafts that it accepted, 0..proposed.
        tokens: tokens gained: accepted + 1, or accepted if the last accepted draft ends the text.
    """

    proposed: int
    accepted: int
    tokens: int

    def __post_init__(self) -> None:
        if not 0 <= self.accepted <= self.proposed or self.tokens not in (self.accepted, self.accepted + 1) or self.tokens < 1:
            raise AcceptanceError(
                f"no round accepts {self.accepted} of {self.proposed} drafts and gains {self.tokens} tokens: accepted is"
                " 0..proposed, and tokens accepted + 1, or accepted (at least 1) where the text ends"
            )


Rounds: TypeAlias = tuple[Round, ...]
"""Those of one prompt, in order."""


@dataclasses.dataclass(frozen=True, slots=True)
class PromptRounds:
    """One prompt.

    Attributes:
        name: of the prompt, unique within a run.
        rounds: its verifications; none if the text ended with its first token.
    """

    name: str
    rounds: Rounds

    @property
    def tokens(self) -> int:
        """Gained by all rounds."""
        return sum(item.tokens for item in self.rounds)


def accepted_prefix(drafts: Sequence[int], truth: Sequence[int]) -> int:
    """How many of the drafts the target would have said itself: the length of the common prefix."""
    return next(
        (place for place, (draft, said) in enumerate(zip(drafts, truth, strict=False)) if draft != said),
        min(len(drafts), len(truth)),
    )


def replay_rounds(
    answer: Sequence[int], drafts_after: Callable[[int], Sequence[int]], *, new_tokens: int, end_tokens: frozenset[int]
) -> Rounds:
    """The rounds of a greedy run whose answer is known.

    A round begins while fewer than `new_tokens` tokens are known, as in the loop, so its drafts may reach beyond that number: the
    answer needs as many tokens more as a chain has drafts, or one that ends with an end token.

    Args:
        answer: what the target says, from the token that prefill gives.
        drafts_after: `place -> drafts` of the chain that begins once answer[0..place] is known; its first draft guesses
            answer[place + 1].
        new_tokens: wanted, the first one included; at least 1.
        end_tokens: each ends the text.

    Raises:
        AcceptanceError: the answer is too short.
    """
    end = next((place for place, token in enumerate(answer) if token in end_tokens), None)
    known, rounds = 1, []
    while known < new_tokens and (end is None or known <= end):
        drafts = drafts_after(known - 1)
        if end is None and known + len(drafts) > len(answer):
            raise AcceptanceError(
                f"the answer has {len(answer)} tokens and no end, and the chain after token {known - 1} reaches to"
                f" {known - 1 + len(drafts)}: store {len(drafts)} tokens more than the {new_tokens} wanted"
            )
        truth = answer[known:] if end is None else answer[known : end + 1]
        accepted = accepted_prefix(drafts, truth)
        ended = end is not None and known + accepted > end
        rounds.append(Round(len(drafts), accepted, accepted if ended else accepted + 1))
        known += rounds[-1].tokens
    return tuple(rounds)
