"""Counters of a scrape: what is missing, contradicts itself or went backwards is refused; ranks are summed; gauges give bounds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specalign.acceptance import AcceptanceError, Served, read_scrape, read_served, served_between
from specalign.acceptance.served_counters import Scrape

RECORDED = Path(__file__).parent / "served"
VLLM = (RECORDED / "vllm_before.prom").read_text()
AFTER = (RECORDED / "vllm_after.prom").read_text()
SGLANG = (RECORDED / "sglang.prom").read_text()
TRTLLM = (RECORDED / "trtllm.prom").read_text()
LABELS = '{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"}'


@pytest.fixture
def served(tmp_path: Path) -> Callable[[str], Served]:
    def read(text: str) -> Served:
        (tmp_path / "scrape.prom").write_text(text)
        return read_served(str(tmp_path / "scrape.prom"))

    return read


@pytest.fixture
def scrape(tmp_path: Path) -> Callable[[str], Scrape]:
    def read(text: str) -> Scrape:
        (tmp_path / "scrape.prom").write_text(text)
        return read_scrape(str(tmp_path / "scrape.prom"))

    return read


def without(text: str, *words: str) -> str:
    kept = "".join(line for line in text.splitlines(keepends=True) if not any(word in line for word in words))
    assert kept != text
    return kept


def swapped(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(without(VLLM, "num_drafts"), "spec_decode_num_drafts.* is missing", id="vLLM without its rounds"),
        pytest.param(without(VLLM, "num_draft_tokens"), "is missing", id="vLLM without drafts"),
        pytest.param(
            without(VLLM, "spec_decode"), "metrics of vLLM, and none of speculative decoding .*--speculative-config", id="vLLM plain"
        ),
        pytest.param(
            without(SGLANG, "spec_"), "metrics of SGLang, and none of speculative decoding .*--enable-metrics", id="SGLang plain"
        ),
        pytest.param("# TYPE up gauge\nup 1\n", "none of its metrics is of vLLM, SGLang, TensorRT-LLM", id="another server"),
        pytest.param(VLLM + SGLANG, "metrics of SGLang and vLLM in one scrape", id="two engines"),
        pytest.param(VLLM + VLLM, "comes twice; give one scrape", id="two scrapes in a file"),
        pytest.param(
            swapped(VLLM, f"drafts_total{LABELS} 100.0", f"drafts_total{LABELS} 0.0"), "no round was verified in it", id="nothing yet"
        ),
        pytest.param(swapped(VLLM, "} 150.0", "} 151.0"), "151 drafts accepted, and 150 by position", id="in the middle of an update"),
        pytest.param(swapped(VLLM, "} 300.0", "} 149.0"), "150 of 149 drafts accepted", id="more accepted than proposed"),
        pytest.param(
            swapped(swapped(VLLM, 'n="0"} 80.0', 'n="0"} 45.0'), 'n="1"} 50.0', 'n="1"} 85.0'),
            "position 1 accepted 85 of 100 drafts, and 45 rounds accepted the one before it",
            id="a later position more often",
        ),
        pytest.param(swapped(VLLM, "} 150.0", "} -150.0"), "is -150, and counters count in whole numbers", id="a negative counter"),
        pytest.param(swapped(VLLM, "} 150.0", "} 150.5"), "is 150.5, and counters count in whole numbers", id="half a draft"),
        pytest.param(swapped(VLLM, "} 150.0", "} 1e300"), r"is 1e\+300, and counters", id="no count"),
        pytest.param(swapped(VLLM, "} 150.0", "} NaN"), "line 28: no sample of Prometheus' text format", id="not a number"),
        pytest.param(swapped(VLLM, "} 150.0", "} 1_50"), "line 28: no sample of Prometheus' text format", id="not a number to others"),
        pytest.param(swapped(VLLM, "} 150.0", "}"), "line 28: no sample of Prometheus' text format", id="cut short"),
        pytest.param(swapped(VLLM, 'position="0"} 80.0', 'position="x"} 80.0'), "has no position in its label position", id="no position"),
        pytest.param(
            without(TRTLLM, "drafted_tokens", "_accepted_tokens_total{engine_type=\"trtllm\",model_name=\"nemotron-nano-3\",token"),
            "totals do not tell how many rounds there were, and its gauge is of one iteration; start it with return_perf_metrics",
            id="TensorRT-LLM without positions",
        ),
        pytest.param(without(TRTLLM, "spec_decode"), "metrics of TensorRT-LLM, and none", id="TensorRT-LLM plain"),
        pytest.param(
            swapped(TRTLLM, 'accepted_tokens_total{engine_type="trtllm",model_name="nemotron-nano-3",token_position="2"}',
                    'accepted_tokens_total{engine_type="trtllm",model_name="nemotron-nano-3",token_position="3"}'),
            "position 3 accepted drafts and proposed none",
            id="accepted beyond what was drafted",
        ),
        pytest.param(without(SGLANG, "spec_num_steps"), "only a lower bound is known, 2.500", id="SGLang without its number of steps"),
        pytest.param(
            swapped(SGLANG, 'true",model_name="meta-llama/Llama-3.1-8B-Instruct"} 4.0',
                    'true",model_name="meta-llama/Llama-3.1-8B-Instruct"} 1600.0'),
            "2520 tokens of 1616 requests in 1000 rounds is less than a token a round",
            id="requests of others",
        ),
        pytest.param(
            swapped(without(SGLANG, "verify_calls"), "} 2.8", "} 0.0"), "no finished request of SGLang was verified", id="no interval yet"
        ),
        pytest.param(
            swapped(without(SGLANG, "verify_calls"), "} 2.8", "} 0.5"), "each round gains at least 1 token", id="a length below 1"
        ),
    ],
)  # fmt: skip
def test_a_scrape_that_tells_no_length_is_refused(served: Callable[[str], Served], text: str, expected: str) -> None:
    with pytest.raises(AcceptanceError, match=expected):
        served(text)


def test_the_series_of_a_server_are_summed_over_its_engines(served: Callable[[str], Served]) -> None:
    counters = [line for line in VLLM.splitlines() if line.startswith("vllm:spec_decode") and "_total{" in line]
    second = [line.replace('engine="0"', 'engine="1"') for line in counters]
    second = [
        re.sub(r" [0-9.]+$", " 300.0", line) if "drafts_total" in line else re.sub(r" 300.0$", " 900.0", line) for line in second
    ]
    found = served(VLLM + "\n".join(second) + "\n")
    assert (found.rounds, found.accepted, found.proposed) == (400, 300, 1200)
    assert found.length == 1.75  # not the mean of 2.5 and 1.5
    assert found.per_position == (0.4, 0.25, 0.1)


def test_shares_are_not_told_where_rounds_proposed_less(served: Callable[[str], Served]) -> None:
    found = served(swapped(VLLM, "} 300.0", "} 280.0"))
    assert found.per_position == ()
    assert found.length == 2.5
    assert any("2.80 drafts on average and 3 at most" in note for note in found.notes)


def test_ends_of_texts_widen_the_bounds_downwards_or_are_named_as_untold(served: Callable[[str], Served]) -> None:
    many = swapped(
        VLLM,
        'finished_reason="stop",model_name="meta-llama/Llama-3.1-8B-Instruct"} 1.0\n',
        'finished_reason="stop",model_name="meta-llama/Llama-3.1-8B-Instruct"} 90.0\n',
    )
    assert served(many).low == 1.0  # each round gains a token
    untold = served(without(VLLM, "request_success"))
    assert (untold.low, untold.length) == (2.5, 2.5)
    assert any("end token" in note for note in untold.notes)


def test_labels_may_hold_anything(served: Callable[[str], Served]) -> None:
    odd = VLLM.replace("meta-llama/Llama-3.1-8B-Instruct", r"a}b\"c,d=\\ {")
    assert served(odd.replace("\n", "\r\n")).per_position == (0.8, 0.5, 0.2)
    assert served(odd.replace(" 100.0\n", " 100.0 1756736798734\n")).rounds == 100


def test_the_gauge_alone_is_of_the_last_interval_and_of_one_rank(served: Callable[[str], Served]) -> None:
    gauges = without(SGLANG, "verify_calls")
    alone = served(gauges)
    assert (alone.length, alone.low, alone.high, alone.rounds) == (2.8, 2.8, 2.8, None)
    assert any("last decode log interval" in note for note in alone.notes)
    line = next(line for line in gauges.splitlines() if line.startswith("sglang:spec_accept_length"))
    two = served(gauges + line.replace('tp_rank="0"', 'tp_rank="1"').replace("2.8", "2.2") + "\n")
    assert (two.length, two.low, two.high) == (None, 2.2, 2.8)


def test_bounds_of_sglang_end_at_all_drafts_right(served: Callable[[str], Served]) -> None:
    found = served(
        swapped(
            SGLANG,
            'g="false",model_name="meta-llama/Llama-3.1-8B-Instruct"} 2000.0',
            'g="false",model_name="meta-llama/Llama-3.1-8B-Instruct"} 3490.0',
        )
    )
    assert (found.low, found.high) == (3.99, 4.0)


# Two scrapes


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param(AFTER, VLLM, r"or in the wrong order: .* went from .* back to", id="the wrong order"),
        pytest.param(
            VLLM,
            swapped(AFTER, 'position="2"} 220.0', 'position="2"} 10.0'),
            "went from 20 back to 10",
            id="one counter backwards",
        ),
        pytest.param(
            VLLM,
            AFTER.replace("1.7567367987341676e+09", "1.7567369e+09"),
            r"num_drafts_created.* was 1756736798.734 and is 1756736900.000",
            id="a restart that overtook the first scrape",
        ),
        pytest.param(VLLM, without(AFTER, 'position="2"'), "is gone; scrape one server twice", id="a series is gone"),
        pytest.param(VLLM, AFTER.replace("Llama-3.1", "Llama-3.2"), "is gone; scrape one server twice", id="another model"),
        pytest.param(VLLM, SGLANG, "metrics of vLLM and of SGLang", id="another engine"),
        pytest.param(VLLM, VLLM, "no round was verified in it", id="nothing in between"),
        pytest.param(SGLANG, SGLANG, "no finished request of SGLang", id="nothing in between, of SGLang"),
    ],
)
def test_scrapes_that_are_not_of_one_run_of_a_server_are_refused(
    scrape: Callable[[str], Scrape], first: str, second: str, expected: str
) -> None:
    with pytest.raises(AcceptanceError, match=expected):
        served_between(scrape(first), scrape(second))


def test_the_first_scrape_may_have_counted_nothing(scrape: Callable[[str], Scrape]) -> None:
    zero = "\n".join(line.rsplit(" ", 1)[0] + " 0.0" if "_total{" in line else line for line in VLLM.splitlines())
    assert served_between(scrape(zero), scrape(VLLM)).length == 2.5


def test_series_that_begin_in_between_count_from_0(scrape: Callable[[str], Scrape]) -> None:
    late = without(TRTLLM, 'accepted_tokens_total{engine_type="trtllm",model_name="nemotron-nano-3",token_position="2"}')
    first = late.replace(" 160.0", " 60.0").replace(" 150.0", " 55.0").replace(" 120.0", " 20.0").replace(" 80.0", " 10.0")
    found = served_between(scrape(first), scrape(TRTLLM))
    assert (found.rounds, found.accepted, found.proposed) == (100, 100 + 70 + 40, 100 + 100 + 95)


def test_a_difference_of_sglang_is_that_of_its_counters(scrape: Callable[[str], Scrape]) -> None:
    first = SGLANG.replace("} 1000.0", "} 600.0").replace("} 2000.0", "} 1000.0").replace("} 16.0", "} 6.0")
    found = served_between(scrape(first), scrape(SGLANG))
    assert (found.length, found.rounds) == (None, 400)
    assert (found.low, found.high) == ((1000 - 10) / 400, (1000 - 10 + 3 * 10) / 400)


TOKENS = ["vllm:spec_decode_num_drafts_total", "sglang:spec_accept_length", "trtllm_spec_decode_drafted_tokens_total", "# TYPE a b\n",
          "{", "}", 'position="0"', "token_position=", '"', "\\", ",", " ", "\n", "1.0", "NaN", "-1", "1e308", "é"]  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.lists(st.sampled_from(TOKENS), max_size=25).map("".join)
    | st.tuples(st.sampled_from([VLLM, SGLANG, TRTLLM]), st.integers(0, 6000), st.text(max_size=3)).map(
        lambda item: item[0][: item[1]] + item[2] + item[0][item[1] + 1 :]
    )
)
def test_any_scrape_is_read_or_refused_and_nothing_else_happens(served: Callable[[str], Served], text: str) -> None:
    try:
        found = served(text)
    except AcceptanceError as error:
        assert str(error).isprintable()  # noqa: PT017
        return
    assert 1 <= found.low <= found.high


def test_chains_of_two_depths_between_two_scrapes_are_refused(scrape: Callable[[str], Scrape]) -> None:
    """The bound above comes of the depth: with the later, shorter one it would be too low for what the longer ones gained."""
    first = re.sub(r"(?m)^(sglang:(?!spec_)\w+_total.*|sglang:spec_verify\w+.*) \S+$", r"\1 0.0", SGLANG)
    assert served_between(scrape(first), scrape(SGLANG)).rounds
    deeper = re.sub(r"(?m)^(sglang:spec_num_steps.*) \S+$", r"\1 7.0", first)
    assert deeper != first
    with pytest.raises(AcceptanceError, match="chains of two depths"):
        served_between(scrape(deeper), scrape(SGLANG))


def test_no_number_of_positions_is_made_up(served: Callable[[str], Served]) -> None:
    counts = {"drafts": 100, "draft_tokens": 400, "accepted_tokens": 150}
    found = served("".join(f"vllm:spec_decode_num_{name}_total {value}\n" for name, value in counts.items()))
    assert any("4.00 drafts on average, so" in note for note in found.notes)


def test_a_number_of_thousands_of_digits_is_shortened(served: Callable[[str], Served]) -> None:
    with pytest.raises(AcceptanceError) as told:
        served('{"meta_info": {"completion_tokens": ' + "9" * 4000 + "}}")
    assert len(str(told.value)) < 500
