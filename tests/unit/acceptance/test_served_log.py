"""Lines of a log: sums over lines where rounds are known, bounds where they are not, and no line is half read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specalign.acceptance import AcceptanceError, Served, read_served

RECORDED = Path(__file__).parent / "served"
VLLM = (RECORDED / "vllm.log").read_text()
SGLANG = (RECORDED / "sglang.log").read_text()
WHOLE = (
    "INFO 09-16 05:26:57 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 3.00, Accepted throughput: 9.00 tokens/s,"
    " Drafted throughput: 9.00 tokens/s, Accepted: 90 tokens, Drafted: 90 tokens, Per-position acceptance rate: 1.000, 1.000, Avg"
    " Draft acceptance rate: 100.0%\n"
)


@pytest.fixture
def served(tmp_path: Path) -> Callable[[str], Served]:
    def read(text: str) -> Served:
        (tmp_path / "server.log").write_text(text)
        return read_served(str(tmp_path / "server.log"))

    return read


def vllm_line(rounds: Sequence[tuple[int, int]], k: int) -> str:
    """What vLLM prints for rounds of (proposed, accepted); metrics.py, SpecDecodingLogging.log."""
    drafts, proposed, accepted = len(rounds), sum(asked for asked, _ in rounds), sum(right for _, right in rounds)
    rates = ", ".join(f"{sum(right > place for _, right in rounds) / drafts:.3f}" for place in range(k))
    return (
        f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / drafts:.2f}, Accepted throughput: 1.00 tokens/s, Drafted"
        f" throughput: 1.00 tokens/s, Accepted: {accepted} tokens, Drafted: {proposed} tokens, Per-position acceptance rate: {rates},"
        " Avg Draft acceptance rate: 50.0%\n"
    )


def test_all_drafts_right(served: Callable[[str], Served]) -> None:
    found = served(WHOLE)
    assert (found.length, found.high, found.rounds, found.per_position) == (3.0, 3.0, 45, (1.0, 1.0))
    assert found.low == pytest.approx(3.0, abs=0.01)


def test_lines_are_weighed_by_their_rounds(served: Callable[[str], Served]) -> None:
    found = served(vllm_line([(2, 2)] * 30, 2) + "other\n" + vllm_line([(2, 0)] * 10, 2))
    assert (found.rounds, found.length) == (40, 2.5)  # the mean of the means is 2
    assert found.per_position == pytest.approx((0.75, 0.75))


def test_rounds_that_proposed_less_leave_bounds_and_no_value(served: Callable[[str], Served]) -> None:
    found = served(vllm_line([(3, 2), (1, 1), (3, 0), (3, 3), (1, 0)] * 20, 3))
    assert (found.length, found.rounds, found.per_position) == (None, None, ())
    assert found.low <= 1 + 6 / 5 <= found.high
    assert found.high - found.low < 0.02


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(
        st.lists(
            st.integers(1, 4).flatmap(lambda asked: st.tuples(st.just(asked), st.integers(0, asked))), min_size=1, max_size=30
        ),
        min_size=1,
        max_size=3,
    )
)
def test_the_bounds_hold_whatever_the_rounds_proposed(
    served: Callable[[str], Served], lines: list[list[tuple[int, int]]]
) -> None:
    found = served("".join(vllm_line(rounds, 4) for rounds in lines))
    rounds = [item for line in lines for item in line]
    length = 1 + sum(right for _, right in rounds) / len(rounds)
    assert found.low - 1e-6 <= length <= found.high + 1e-6
    if all(asked == 4 for asked, _ in rounds):
        assert found.length == pytest.approx(length)
        assert found.rounds == len(rounds)


def test_one_interval_of_sglang_is_a_value_within_its_rounding(served: Callable[[str], Served]) -> None:
    line = SGLANG.splitlines()[1]
    found = served(line)
    assert (found.length, found.low, found.high) == (2.45, pytest.approx(2.445), pytest.approx(2.455))
    dead = served(line.replace("2.45", "1.00"))
    assert (dead.length, dead.low) == (1.0, 1.0)  # no length is below 1
    assert served(line.replace("accept rate: 0.48, ", "")).length == 2.45


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(VLLM + SGLANG, "lines of vLLM and of SGLang", id="two engines"),
        pytest.param(WHOLE[:120], "line 1: of Mean acceptance length, Accepted, Drafted and .* one is missing", id="cut short"),
        pytest.param(WHOLE.replace("Accepted: 90 tokens, ", ""), "one is missing", id="no accepted tokens"),
        pytest.param(WHOLE.replace("Drafted: 90", "Drafted: 80"), "90 of 80 drafts accepted", id="more than drafted"),
        pytest.param(WHOLE.replace("3.00", "2.00"), "no number of rounds gives that", id="another mean"),
        pytest.param(WHOLE.replace("1.000, 1.000", "1.000, 0.500"), "no number of rounds gives that", id="other shares"),
        pytest.param(WHOLE.replace("3.00", "nan"), "no number of rounds gives that", id="a mean of nothing"),
        pytest.param(WHOLE.replace("3.00", "0.50"), "no number of rounds gives that", id="a mean below 1"),
        pytest.param(
            WHOLE.replace("3.00", "nan").replace(": 90 tokens", ": 0 tokens"), "1 lines of vLLM and not one draft", id="no draft"
        ),
        pytest.param(SGLANG.replace("2.45", "0.45"), "an accept len of 0.45 in SGLang's lines", id="a length below 1"),
        pytest.param(
            SGLANG.replace("accept len: 2.45", "accept len: x").replace("2.70", "2.7"),
            "no figures of acceptance in it: it begins",
            id="no number",
        ),
        pytest.param(
            "Speculative metrics: Draft acceptance rate: 0.642\n", "no figures of acceptance in it", id="vLLM before V1"
        ),
    ],
)
def test_lines_that_tell_no_length_are_refused(served: Callable[[str], Served], text: str, expected: str) -> None:
    with pytest.raises(AcceptanceError, match=expected):
        served(text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.tuples(st.sampled_from([VLLM, SGLANG, WHOLE]), st.integers(0, 900), st.integers(0, 30), st.text(max_size=4)).map(
        lambda item: item[0][: item[1]] + item[3].encode("utf-8", "replace").decode() + item[0][item[1] + item[2] :]
    )
)
def test_any_log_is_read_or_refused_and_nothing_else_happens(served: Callable[[str], Served], text: str) -> None:
    try:
        found = served(text)
    except AcceptanceError as error:
        assert str(error).isprintable()  # noqa: PT017
        return
    assert 1 <= found.low <= found.high
    assert math.isfinite(found.high)
