"""Rows find each other by the tokens before them, however the engine cut, cached, repeated or padded its forwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specalign.compare.layerwise import compare_dumps
from specalign.compare.result import CompareReport
from specalign.dump.keys import RowKind
from tests.unit.compare.dumps import KEYS, PADDING, MemoryDump, Row, decode, flip, prefill, run

PROMPT = [5, 17, 23, 99]
REQUESTS = {"one": [*PROMPT, 7, 8, 9], "two": [*PROMPT, 3, 4, 6], "three": [1, 2, 3, 4, 5]}
TRAIN = prefill("one", 7) + prefill("two", 7) + prefill("three", 5)


def codes(report: CompareReport) -> set[str]:
    return {problem.code for problem in report.problems}


def train() -> MemoryDump:
    return run(REQUESTS, TRAIN, name="train")


def renamed(*forwards: list[Row], **options: object) -> MemoryDump:
    """The same requests under an engine's own names."""
    names = {"a9": REQUESTS["one"], "b7": REQUESTS["two"], "c3": REQUESTS["three"]}
    return run(names, *forwards, name="rollout", **options)  # type: ignore[arg-type]


def test_prefill_and_decode_steps_against_packed_sequences() -> None:
    """Every row but the last of each request, whose token the engine never ran."""
    report = compare_dumps(
        train(),
        renamed(
            prefill("a9", 4) + prefill("c3", 3), prefill("b7", 4), decode(4, "a9", "b7"), decode(3, "c3"), decode(5, "b7", "a9")
        ),
    )
    assert report.ok
    # Prompt rows of `two` are those of `one`: 4 shared, 2 + 2 generated, 4 of `three`.
    assert [key.rows_compared for key in report.keys] == [12] * len(KEYS)
    assert (report.a.terminal, report.a.repeated, report.a.missing) == (3, 4, 0)
    assert {(m.request_a, m.request_b) for m in report.requests} == {("one", "a9"), ("two", "b7"), ("three", "c3")}


def test_chunked_prefill() -> None:
    report = compare_dumps(
        train(),
        renamed(prefill("a9", 3), prefill("a9", 4, 3) + prefill("b7", 5), prefill("b7", 2, 5) + prefill("c3", 5)),
    )
    assert report.ok
    assert report.keys[0].rows_compared == 15


def test_a_cached_prefix_is_found_in_the_request_that_filled_it() -> None:
    """`b7` runs from its last prompt token on: its first three rows are those that `a9` ran."""
    report = compare_dumps(train(), renamed(prefill("a9", 7), prefill("b7", 4, 3), prefill("c3", 5)))
    assert report.ok
    assert ("two", "b7", "continuation") in {(m.request_a, m.request_b, m.how) for m in report.requests}


def test_a_cached_prefix_that_nobody_ran_is_missing() -> None:
    requests = {"p": [1, 2, 3, 4, 5]}
    report = compare_dumps(run(requests, prefill("p", 5)), run(requests, prefill("p", 2, 3)))
    assert codes(report) == {"rows-missing"}
    assert "positions 0-2" in report.problems[0].where
    assert report.a.missing == 3


def test_a_retracted_request_repeats_its_rows() -> None:
    report = compare_dumps(
        train(), renamed(prefill("a9", 4), decode(4, "a9"), prefill("a9", 7) + prefill("b7", 7) + prefill("c3", 5))
    )
    assert report.ok
    assert report.b.repeated == 5 + 4


def test_a_repeat_that_differs_fails() -> None:
    """Re-prefilled rows with other values: the first observation agrees with the train side, and that is not enough."""

    def edit(key: str, row: Row, value: object) -> object:
        return flip(value) if key == "boundary.2" and row == ("a9", 1, RowKind.DECODE) else value  # type: ignore[arg-type]

    again = [("a9", position, RowKind.DECODE) for position in range(4)]
    rollout = renamed(prefill("a9", 7) + prefill("b7", 7) + prefill("c3", 5), again, edit=edit)
    report = compare_dumps(train(), rollout)
    assert codes(report) == {"repeat-differs"}
    assert "boundary.2, position 1, channel 2" in report.problems[0].where
    assert not report.ok
    assert report.first is None


def test_padding_and_health_checks_are_counted_and_not_compared() -> None:
    health = [(request, position, RowKind.HEALTH_CHECK) for request, position, _ in prefill("three", 2)]
    rollout = renamed(prefill("a9", 7) + prefill("b7", 7), prefill("c3", 5) + [PADDING] * 3)
    report = compare_dumps(run(REQUESTS, [*TRAIN, PADDING, *health], name="train"), rollout)
    assert report.ok
    assert (report.a.padding, report.a.health_checks, report.b.padding) == (1, 2, 3)


def test_the_extra_step_past_the_end_is_terminal() -> None:
    """SGLang's overlap scheduler runs one more step, whose token is thrown away: a row that only that side has."""
    requests = {"p": [1, 2, 3, 4]}
    report = compare_dumps(run(requests, prefill("p", 3)), run(requests, prefill("p", 3), decode(3, "p")))
    assert report.ok
    assert report.b.terminal == 1


def test_two_rows_past_the_end_are_missing() -> None:
    requests = {"p": [1, 2, 3, 4, 5]}
    report = compare_dumps(run(requests, prefill("p", 3)), run(requests, prefill("p", 5)))
    assert codes(report) == {"rows-missing"}


def test_a_request_that_the_other_side_lacks() -> None:
    report = compare_dumps(train(), renamed(prefill("a9", 7) + prefill("b7", 7)))
    assert codes(report) == {"unmatched-request", "rows-missing"}
    assert report.a.missing == 5


def test_two_beginnings_that_fit_are_an_error() -> None:
    """The rollout's rows begin behind a cached prefix, and two prompts of the train side continue in the same way."""
    requests = {"one": [1, 2, 50, 51], "two": [8, 9, 50, 51]}
    rollout = run({"x": [0, 0, 50, 51]}, prefill("x", 2, 2), name="rollout")
    report = compare_dumps(run(requests, prefill("one", 4) + prefill("two", 4)), rollout)
    assert "ambiguous-request" in codes(report)
    assert not any(key.rows_compared for key in report.keys)


def test_the_same_id_decides_between_two_beginnings() -> None:
    requests = {"one": [1, 2, 50, 51], "two": [8, 9, 50, 51]}
    rollout = run(requests, prefill("one", 4), prefill("two", 2, 2), name="rollout")
    report = compare_dumps(run(requests, prefill("one", 4) + prefill("two", 4)), rollout)
    assert "ambiguous-request" not in codes(report)
    assert ("two", "two", "continuation") in {(m.request_a, m.request_b, m.how) for m in report.requests}


def test_two_beginnings_with_the_same_tokens_do_not_matter() -> None:
    requests = {"one": [1, 2, 50, 51], "two": [1, 2, 50, 51]}
    rollout = run({"x": requests["one"], "y": requests["one"]}, prefill("x", 4), prefill("y", 2, 2), name="rollout")
    assert compare_dumps(run(requests, prefill("one", 4) + prefill("two", 4)), rollout).ok


def test_two_tokens_at_one_position_are_an_error() -> None:
    """Rows of rejected drafts, or one id for two samples."""
    first, second = run({"p": [1, 2, 3]}, prefill("p", 3)), run({"p": [1, 2, 4]}, prefill("p", 3))
    second.passes[0].number = 1
    both = MemoryDump([*first.passes, *second.passes])
    report = compare_dumps(run({"p": [1, 2, 3]}, prefill("p", 3)), both)
    assert "contradicting-tokens" in codes(report)
    assert "tokens 3 and 4" in next(p.what for p in report.problems if p.code == "contradicting-tokens")


def test_swapped_requests_are_not_taken_for_each_other() -> None:
    """Ids that are exchanged change nothing: tokens decide."""
    rollout = run({"one": REQUESTS["two"], "two": REQUESTS["one"], "three": REQUESTS["three"]}, TRAIN, name="rollout")
    report = compare_dumps(train(), rollout)
    assert report.ok
    assert {(m.request_a, m.request_b) for m in report.requests} == {("one", "two"), ("two", "one"), ("three", "three")}


@pytest.mark.hypothesis
@given(st.data())
def test_any_schedule_of_the_same_requests_is_equal(data: st.DataObject) -> None:
    """Whatever the order and the chunks, every row is compared, and with its like."""
    lengths = {name: len(tokens) for name, tokens in REQUESTS.items()}
    done = dict.fromkeys(REQUESTS, 0)
    forwards: list[list[Row]] = []
    while any(done[name] < lengths[name] for name in REQUESTS):
        rows: list[Row] = []
        for name in data.draw(st.permutations(sorted(REQUESTS))):
            take = data.draw(st.integers(0, lengths[name] - done[name]))
            rows += prefill(name, take, done[name])
            done[name] += take
        forwards.append(rows or decode(0))
        if not rows:
            name = next(name for name in REQUESTS if done[name] < lengths[name])
            forwards[-1] = prefill(name, 1, done[name])
            done[name] += 1
    report = compare_dumps(train(), run(REQUESTS, *forwards, name="rollout"))
    assert report.ok
    assert all(key.rows_compared == 15 for key in report.keys)
    assert report.a.rows == report.b.rows == 19
