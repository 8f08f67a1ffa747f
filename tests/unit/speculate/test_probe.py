"""The probe: its readings by hand, its verdicts on counts that are known, and a random head, of which nothing may be concluded."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from specalign.acceptance.metrics import Interval
from specalign.layer_ids import POST_NORM
from specalign.speculate.probe import Candidate, Probe, _Race, _Run, config_lines, format_probe, probe_head, readings

from .pairs import STATES, VOCABULARY, make_head, make_target, prompts


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([10, 20, 29], {"ids are boundaries": (10, 20, 29), "ids are block outputs": (11, 21, 30),
                        "ids index output_hidden_states": (10, 20, 29), "ids -1 are boundaries": (9, 19, 28)}),
        ([10, 20, 30], {"ids are boundaries": (10, 20, 30), "ids index output_hidden_states": (10, 20, POST_NORM),
                        "ids -1 are boundaries": (9, 19, 29)}),
        (None, {"ids are boundaries": (2, 15, 27), "ids are block outputs": (3, 16, 28), "ids +2 are boundaries": (4, 17, 29),
                "ids index output_hidden_states": (2, 15, 27), "ids -1 are boundaries": (1, 14, 26)}),
    ],
)  # fmt: skip
def test_readings(ids: list[int] | None, expected: dict[str, tuple[object, ...]]) -> None:
    assert readings(ids, 30) == expected


@dataclasses.dataclass
class Counted:
    """A text with 10 questions: how many of them each reading answers."""

    answers: dict[tuple[int, ...], int]
    choices: torch.Tensor = dataclasses.field(default_factory=lambda: torch.zeros(11, dtype=torch.int64))

    def right(self, head: object, states: tuple[int, ...]) -> int:
        return self.answers[states]


def race(*texts: dict[tuple[int, ...], int]) -> _Race:
    found = _Race({made: ["a name"] for made in texts[0]})
    for text in texts:
        found.ask(Counted(text), None)  # type: ignore[arg-type]
    return found


def test_who_is_clearly_behind_is_sent_out_and_who_is_close_stays() -> None:
    found = race(*[{(1,): 8, (2,): 8 - place % 2 * 2, (3,): 8 - (place == 0)} for place in range(12)])
    assert not found.narrowed()
    assert [item.states for item in found.ranked()] == [(1,), (3,), (2,)]
    found.ask(Counted({(1,): 8, (3,): 2}), None)  # type: ignore[arg-type]  # the second is asked no more
    ranked = {item.states: item for item in found.ranked()}
    assert ranked[(1,)].behind is None
    assert ranked[(2,)].behind is not None
    assert ranked[(2,)].behind.value == pytest.approx(0.1)


def test_few_questions_send_nobody_out() -> None:
    assert not race({(1,): 10, (2,): 0}).narrowed()
    assert race(*[{(1,): 10, (2,): 0}] * 5).narrowed()


def probe(*candidates: Candidate, questions: int = 500, frequent: float = 0.05) -> Probe:
    return Probe(candidates, questions, 20, frequent, 30)


BEST = Candidate(("ids are boundaries",), (2, 15, 27), Interval(0.5, 0.45, 0.55))
BEHIND = Candidate(("ids are block outputs",), (3, 16, 28), Interval(0.4, 0.35, 0.45), Interval(0.1, 0.05, 0.15))
CLOSE = dataclasses.replace(BEHIND, behind=Interval(0.01, -0.01, 0.03))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (probe(BEST, BEHIND), ""),
        (probe(BEST), ""),
        (probe(BEST, BEHIND, questions=49), "49 questions are too few"),
        (probe(BEST, CLOSE), r"leads ids are block outputs by 0.010 \[-0.010, 0.030\], which is within noise"),
        (probe(BEST, BEHIND, frequent=0.45), "no more often than always saying the most frequent token"),
    ],
)
def test_verdicts(found: Probe, why: str) -> None:
    import re

    assert re.search(why, found.undecided) if why else found.undecided == ""
    assert (found.verdict is None) == bool(why)
    text = format_probe(found)
    assert ("undecided: " in text) == bool(why)
    assert ('"eagle_aux_hidden_state_layer_ids": [1, 14, 26]' in text) == (not why)


def test_config_lines_are_left_out_where_no_id_says_it() -> None:
    assert list(config_lines((0, 15, 30), 30)) == ["engines that read boundaries"]
    assert config_lines((1, 15, 30), 30)["block outputs"].endswith("[0, 14, 29]")
    assert config_lines((1, POST_NORM), 30) == {}


def test_a_random_head_is_undecided() -> None:
    texts = {str(i): row for i, row in enumerate(prompts(*[30] * 20))}
    found = probe_head(make_target(), make_head(), STATES, texts)
    assert found.verdict is None
    assert found.questions == 20 * 28
    assert found.prompts == 20


def test_a_head_that_knows_the_answer_from_one_reading_alone_is_decided_for_it() -> None:
    """A head whose way from the states to its hidden state is broken for every reading but one."""
    target, head = make_target(), make_head()
    texts = {str(i): row for i, row in enumerate(prompts(*[30] * 20))}

    class Oracle(_Run):
        """Never made; the questions are answered below."""

    answers = {tuple(STATES): 0.9}
    import specalign.speculate.probe as room

    asked = room._Run.right
    try:
        room._Run.right = lambda self, head, states: int(  # type: ignore[method-assign]
            answers.get(tuple(states), 0.3) * (len(self.choices) - 1)
        )
        found = probe_head(target, head, STATES, texts)
    finally:
        room._Run.right = asked  # type: ignore[method-assign]
    assert found.verdict is not None
    assert found.verdict.states == tuple(STATES)
    assert found.prompts == 16  # after the first part nobody else is left


def test_what_counts_as_right_is_the_targets_own_next_choice() -> None:
    """Against a plain loop: row by row, the head's first choice and the target's argmax one position on."""
    from specalign.draft import KVCache
    from specalign.speculate.probe import _ask

    target, head = make_target(), make_head()
    (row,) = prompts(12)
    run = _ask(target, row, STATES)
    with torch.no_grad():
        logits = target.model(torch.tensor([row])).logits[0]
        count = 0
        for t in range(len(row) - 2):
            hidden = head.combine_states([run.states[state][: t + 1] for state in STATES])
            step = head(torch.tensor(row[1 : t + 2]), hidden, torch.arange(t + 1), KVCache())
            count += int(head.logits(step.normed[-1]).argmax()) == int(logits[t + 1].argmax())
    assert run.right(head, STATES) == count
    assert 0 < count < len(row) - 2 or VOCABULARY > 12
