"""A round's counts are those of its definition, told by hand and by a plain simulation of the loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specalign.acceptance import AcceptanceError, Round, accepted_prefix, replay_rounds

END = frozenset({9})


@pytest.mark.parametrize(
    ("answer", "guesses", "new", "expected"),
    [
        pytest.param(
            [1] * 12, 0, 5, [Round(3, 0, 1)] * 4, id="a dead drafter: the first token is prefill's, one a round follows"
        ),
        pytest.param([1] * 12, 1, 5, [Round(3, 3, 4)], id="all right: one round of 4"),
        pytest.param([1] * 12, 1, 6, [Round(3, 3, 4)] * 2, id="a round begins while tokens are wanted, and may go beyond"),
        pytest.param([1, 1, 9], 1, 6, [Round(3, 1, 2)], id="the end token comes as the target's own"),
        pytest.param([1, 1, 9], 9, 6, [Round(3, 0, 1), Round(3, 1, 1)], id="the end token comes as a draft: nothing follows it"),
        pytest.param([9], 9, 6, [], id="an answer that ends at once has no round"),
        pytest.param([1, 1, 1], 1, 1, [], id="prefill gives the only token wanted"),
    ],
)
def test_rounds_by_hand(answer: list[int], guesses: int, new: int, expected: list[Round]) -> None:
    drafts = [guesses] * 3
    assert replay_rounds(answer, lambda place: drafts, new_tokens=new, end_tokens=END) == tuple(expected)


@given(
    answer=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    guesses=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=30, max_size=30),
    new=st.integers(1, 20),
)
def test_rounds_are_those_of_a_loop_that_knows_the_answer_token_by_token(
    answer: list[int], guesses: list[list[int]], new: int
) -> None:
    text = [*answer, 9, *[0] * 30]  # what the target says, the end token included
    said, counted = [text[0]], []
    while len(said) < new and said[-1] != 9:
        drafts, gained = guesses[len(said) - 1], 0
        accepted = 0
        while True:
            token = text[len(said)]
            said.append(token)
            gained += 1
            if accepted < len(drafts) and drafts[accepted] == token:
                accepted += 1
                if token == 9:
                    break
                continue
            break
        counted.append(Round(len(drafts), accepted, gained))
    found = replay_rounds(text, lambda place: guesses[place], new_tokens=new, end_tokens=END)
    assert found == tuple(counted)


def test_an_answer_too_short_for_its_last_chain_is_refused() -> None:
    with pytest.raises(
        AcceptanceError, match=r"has 4 tokens and no end, and the chain after token 1 reaches to 4: store 3 tokens"
    ):
        replay_rounds([1, 1, 1, 1], lambda place: [0, 0, 0], new_tokens=4, end_tokens=END)


@pytest.mark.parametrize("counts", [(3, 4, 5), (3, -1, 0), (3, 1, 3), (3, 0, 0), (3, 2, 1)])
def test_counts_that_no_round_gives_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(AcceptanceError, match="no round accepts"):
        Round(*counts)


@pytest.mark.parametrize(
    ("drafts", "truth", "count"), [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 3], [1, 2], 1), ([1, 2, 3], [1], 1), ([2], [1], 0)]
)
def test_the_accepted_prefix(drafts: list[int], truth: list[int], count: int) -> None:
    assert accepted_prefix(drafts, truth) == count
