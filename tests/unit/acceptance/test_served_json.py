"""JSON of responses and statistics: another definition than the known one, or counts that no run gives, are refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specalign.acceptance import AcceptanceError, Served, read_served

RECORDED = Path(__file__).parent / "served"
KNOWN = json.loads((RECORDED / "sglang_known.json").read_text())
OPENAI = json.loads((RECORDED / "sglang_openai.json").read_text())
INFO = json.loads((RECORDED / "sglang_server_info.json").read_text())
VLLM = json.loads((RECORDED / "vllm_response.json").read_text())
ITERATIONS = json.loads((RECORDED / "trtllm_iterations.json").read_text())


@pytest.fixture
def served(tmp_path: Path) -> Callable[[Any], Served]:
    def read(value: Any) -> Served:
        file = tmp_path / "figures.json"
        file.write_text(value if isinstance(value, str) else json.dumps(value))
        return read_served(str(file))

    return read


def changed(record: Any, *path: Any, to: Any = None, gone: bool = False) -> Any:
    record = copy.deepcopy(record)
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    assert path[-1] in inner or isinstance(inner, list)
    if gone:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return record


def meta(**changes: Any) -> Any:
    return {**KNOWN, "meta_info": {**KNOWN["meta_info"], **changes}}


def spec(**changes: Any) -> Any:
    return {**VLLM, "metrics": {"speculative_decoding": {**VLLM["metrics"]["speculative_decoding"], **changes}}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("{", "figures.json: not JSON", id="no JSON"),
        pytest.param('{"a": 1, "a": 2}', "key 'a' comes twice", id="a key twice"),
        pytest.param("[" * 100_000, "nested too deep", id="nested too deep"),
        pytest.param([], "an empty list; TensorRT-LLM gives one when nothing ran since the last look", id="an empty list"),
        pytest.param({"error": {"message": "no"}}, "found an object with keys 'error'; accepted are responses of SGLang", id="an error"),
        pytest.param([[1]], "entry 0: found a list of 1; accepted", id="a list of lists"),
        pytest.param(
            json.dumps(KNOWN) + "\n" + json.dumps(VLLM), "line 2: holds metrics, and .*line 1 holds meta_info", id="two engines"
        ),
        pytest.param(json.dumps(KNOWN) + "\n[1]", "line 2: found a list of 1", id="a line that is no response"),
        pytest.param(json.dumps(KNOWN) + '\n{"meta', "line 2: not JSON", id="a line cut short"),
        # SGLang
        pytest.param(
            changed(KNOWN, "meta_info", "spec_verify_ct", gone=True), "without spec_verify_ct; known are SGLang 0.5.16", id="no speculation"
        ),
        pytest.param(meta(spec_num_correct_drafts=None), "spec_num_correct_drafts is null, and a whole number", id="no count"),
        pytest.param(meta(spec_num_correct_drafts=16.0), "spec_num_correct_drafts is 16.0, and a whole number", id="no whole number"),
        pytest.param(meta(spec_num_correct_drafts=True), "spec_num_correct_drafts is true", id="true"),
        pytest.param(changed(KNOWN, "meta_info", "completion_tokens", gone=True), "completion_tokens is missing", id="no tokens"),
        pytest.param(changed(KNOWN, "meta_info", to=[]), "meta_info is a list of 0, and an object", id="no meta_info"),
        pytest.param(meta(spec_num_proposed_drafts=15), "16 of 15 drafts in 16 rounds: no run counts so", id="more than proposed"),
        pytest.param(
            meta(spec_accept_length=31 / 16),
            r"spec_accept_length is 1.9375, and completion_tokens / spec_verify_ct is 2: this version defines its figures otherwise",
            id="a length without the token of prefill",
        ),
        pytest.param(meta(spec_accept_rate=0.6), "spec_accept_rate is 0.6, and correct / proposed", id="another rate"),
        pytest.param(meta(completion_tokens=34, spec_accept_length=34 / 16), "33 tokens after the first in 16 rounds", id="too many tokens"),
        pytest.param(meta(completion_tokens=16, spec_accept_length=1.0), "15 tokens after the first in 16 rounds", id="too few tokens"),
        pytest.param(
            meta(spec_correct_drafts_histogram=[1, 15]), "has 16 rounds with 15 drafts, and 16 with 16 are stated", id="another histogram"
        ),
        pytest.param(meta(spec_correct_drafts_histogram=[0, "16"]), "histogram is a list of 2, and a list of counts", id="texts"),
        pytest.param({"meta_info": {"completion_tokens": 1}}, "1 responses and not one verification", id="an answer of one token"),
        pytest.param(changed(OPENAI, "sglext", to={}), "spec_tokens_details of sglext is null.*return_spec_tokens_details", id="not asked"),
        pytest.param(changed(OPENAI, "sglext", "spec_tokens_details", to=[{}, {}]), "is a list of 2, and one object", id="two answers"),
        pytest.param(changed(OPENAI, "usage", gone=True), "usage is null", id="no usage"),
        pytest.param(changed(INFO, "internal_states", to={}), "internal_states is an empty object", id="no states"),
        pytest.param(changed(INFO, "internal_states", to=[{}]), "no avg_spec_accept_length in internal_states", id="no mean"),
        pytest.param(changed(INFO, "internal_states", to=[{"avg_spec_accept_length": 0.5}]), "at least 1 token", id="a mean below 1"),
        pytest.param(changed(INFO, "internal_states", to=[{"avg_spec_accept_length": "2"}]), "is the text '2'", id="a text as mean"),
        pytest.param([INFO, INFO], "2 states of servers", id="two servers"),
        # vLLM
        pytest.param({"metrics": {"speculative_decoding": None}}, "is null, and an object.*--per-request-spec-decode-metrics", id="off"),
        pytest.param(spec(num_draft_tokens=9), "10 of 9 drafts", id="vLLM: more than proposed"),
        pytest.param(spec(mean_acceptance_length=2.23), r"mean_acceptance_length is 2.23, and 1 \+ accepted / steps", id="another mean"),
        pytest.param(spec(acceptance_histogram=[39, 1, 0, 2]), "has 42 rounds with 7 drafts", id="vLLM: another histogram"),
        pytest.param(spec(acceptance_histogram_by_draft_length={"3": [38, 2, 0, 3]}), r"sums to \(43, 11, 129\)", id="other rows"),
        pytest.param(spec(acceptance_histogram_by_draft_length={"2": [39, 1, 0, 3]}), "with 4 counts for 2 drafts", id="a longer row"),
        pytest.param(spec(acceptance_histogram_by_draft_length={"x": [39]}), "with a row for 'x' drafts", id="a row for no number"),
        # TensorRT-LLM
        pytest.param(ITERATIONS[:1], "1 iterations, and none verified drafts", id="prefill only"),
        pytest.param([{"iter": 1, "iterLatencyMS": 3.0}], "1 iterations, and none verified drafts", id="no speculation at all"),
        pytest.param([*ITERATIONS, ITERATIONS[1]], "entry 4: iteration 2 comes twice", id="a row a rank"),
        pytest.param(
            changed(ITERATIONS, 1, "specDecodingStats", "numRequestsWithDraftTokens", gone=True),
            "entry 1: numRequestsWithDraftTokens is missing",
            id="no rounds",
        ),
        pytest.param(
            changed(ITERATIONS, 1, "specDecodingStats", "acceptanceLength", to=2.25),
            r"entry 1: acceptanceLength is 2.25, and \(accepted \+ requests\) / requests is 3.25",
            id="a length without the target's own token",
        ),
    ],
)  # fmt: skip
def test_figures_that_contradict_themselves_or_are_none_are_refused(
    served: Callable[[Any], Served], value: Any, expected: str
) -> None:
    with pytest.raises(AcceptanceError, match=expected):
        served(value)


def test_a_list_of_responses_is_read_as_one_a_line_is(served: Callable[[Any], Served]) -> None:
    dead = json.loads((RECORDED / "sglang_dead.json").read_text())
    listed = served([KNOWN, dead])
    assert listed == served(json.dumps(KNOWN) + "\n\n" + json.dumps(dead) + "\n")
    assert (listed.rounds, listed.accepted, listed.length) == (23, 16, (32 + 7) / 23)  # not the mean of 2 and 1
    assert listed.per_position == (16 / 23,)


def test_a_retraction_prefills_once_more_and_its_token_belongs_to_no_round(served: Callable[[Any], Served]) -> None:
    # 1 + 32 + 1 for the prefill after the retraction, ended by itself
    ended = meta(
        completion_tokens=34, num_retractions=1, finish_reason={"type": "stop", "matched": 2}, spec_accept_length=34 / 16
    )
    found = served(ended)
    assert (found.length, found.low) == (2.0, 2.0)


def test_a_text_that_ended_by_itself_counts_the_tokens_it_has(served: Callable[[Any], Served]) -> None:
    # the end token was an accepted draft: no token of the target's own follows
    found = served(meta(completion_tokens=32, finish_reason={"type": "stop", "matched": 2}))
    assert (found.length, found.low, found.high) == (31 / 16,) * 3


def test_vllm_bounds_what_it_counts_after_the_end(served: Callable[[Any], Served]) -> None:
    found = served(changed(VLLM, "choices", 0, "finish_reason", to="stop"))
    assert (found.length, found.low) == (53 / 43, 50 / 43)


def test_shares_of_chains_of_several_lengths_are_of_the_rounds_that_proposed_so_far(served: Callable[[Any], Served]) -> None:
    found = served(
        spec(
            mean_acceptance_length=1.9, acceptance_histogram=[4, 3, 3], num_spec_steps=10, num_accepted_draft_tokens=9,
            num_draft_tokens=15, acceptance_histogram_by_draft_length={"0": [1], "1": [1, 2], "2": [2, 1, 3]},
        )
    )  # fmt: skip
    assert found.per_position == (6 / 9, 3 / 6)
    assert served(spec(acceptance_histogram_by_draft_length={})).per_position == ()


def test_ranks_that_differ_give_bounds(served: Callable[[Any], Served]) -> None:
    found = served(changed(INFO, "internal_states", to=[{"avg_spec_accept_length": 2.5}, {"avg_spec_accept_length": 2.0}, {}]))
    assert (found.length, found.low, found.high) == (None, 2.0, 2.5)


def test_statistics_may_come_as_texts_and_without_speculation_in_between(served: Callable[[Any], Served]) -> None:
    rows = [json.dumps(item) for item in ITERATIONS] + [json.dumps({"iter": 5, "specDecodingStats": None})]
    assert served(rows) == served(ITERATIONS)


KEYS = sorted({*KNOWN["meta_info"], *VLLM["metrics"]["speculative_decoding"], *ITERATIONS[0]["specDecodingStats"]})
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers(-1, 3), max_size=3)
INNER = st.dictionaries(st.sampled_from(KEYS), VALUES | st.integers(0, 40), max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.one_of(
        INNER.map(lambda item: meta(**item)),
        INNER.map(lambda item: spec(**item)),
        st.tuples(
            st.sampled_from(["meta_info", "sglext", "metrics", "internal_states", "specDecodingStats", "iter"]), VALUES | INNER
        ).map(lambda item: {item[0]: item[1]}),
        st.lists(INNER.map(lambda item: {"iter": 1, "specDecodingStats": item}) | INNER, max_size=3),
        INNER.map(lambda item: {"internal_states": [item, {"avg_spec_accept_length": item.get("iter", 2)}]}),
        st.text().map(lambda text: "{" + text),
        st.text().map(lambda text: "[" + text),
    )
)
def test_any_json_is_read_or_refused_and_nothing_else_happens(served: Callable[[Any], Served], value: Any) -> None:
    try:
        found = served(value if not isinstance(value, str) else value.encode("utf-8", "replace").decode())
    except AcceptanceError as error:
        assert str(error).isprintable()  # noqa: PT017
        return
    assert 1 <= found.low <= found.high
