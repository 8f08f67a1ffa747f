"""Recorded texts in the engines' own formats give the figures that were worked out by hand, in this room's definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specalign.acceptance import AcceptanceError, PromptRounds, Round, Served, measure, read_scrape, read_served, served_between

RECORDED = Path(__file__).parent / "served"


def figures(served: Served) -> tuple[object, ...]:
    return (served.engine, served.length, served.low, served.high, served.rounds, served.accepted, served.proposed)


@pytest.mark.parametrize(
    ("name", "expected", "per_position"),
    [
        # 100 drafts, 150 of 300 accepted; one request ended by itself, and may have counted 3 tokens too many
        ("vllm_before.prom", ("vLLM", 2.5, 2.47, 2.5, 100, 150, 300), (0.8, 0.5, 0.2)),
        # 160 drafts at position 0, 120 + 80 + 40 accepted; 2 requests ended by themselves
        ("trtllm.prom", ("TensorRT-LLM", 2.5, 394 / 160, 2.5, 160, 240, 470), (0.75, 0.5, 40 / 150)),
        # 2520 tokens of 20 requests in 1000 verifications; up to 3 more of each request were cut off
        ("sglang.prom", ("SGLang", None, 2.5, 2.56, 1000, None, None), ()),
        # first draft right, second wrong: the length is 2, of 32 tokens, one of them prefill's, the last round cut at 32
        ("sglang_known.json", ("SGLang", 2.0, 31 / 16, 2.0, 16, 16, 32), (1.0,)),
        ("sglang_openai.json", ("SGLang", 2.0, 31 / 16, 2.0, 16, 16, 32), (1.0,)),
        # a drafter that is never right reads 8 / 7 there
        ("sglang_dead.json", ("SGLang", 1.0, 1.0, 1.0, 7, 0, 14), ()),
        # that one; rounds of 4, 1 and 2 tokens (its end token is an accepted draft), and an answer of 1 token
        ("sglang_responses.jsonl", ("SGLang", 1.4, 1.4, 1.4, 10, 5, 23), (0.2, 0.2, 0.1)),
        ("sglang_server_info.json", ("SGLang", 2.375, 2.375, 2.375, None, None, None), ()),
        ("sglang.log", ("SGLang", None, 2.445, 2.705, None, None, None), ()),
        # the example of vLLM's documentation
        ("vllm_response.json", ("vLLM", 53 / 43, 53 / 43, 53 / 43, 43, 10, 129), (4 / 43, 3 / 43, 3 / 43)),
        # iterations of 0, 4, 4 and 1 verifications
        ("trtllm_iterations.json", ("TensorRT-LLM", 23 / 9, 23 / 9, 23 / 9, 9, 14, 27), ()),
    ],
)
def test_recorded(name: str, expected: tuple[Any, ...], per_position: tuple[float, ...]) -> None:
    found = read_served(str(RECORDED / name))
    assert figures(found) == pytest.approx(expected)
    assert found.per_position == pytest.approx(per_position)
    assert found.what_converted
    assert (found.length is None) == any("no value" in note for note in found.notes)


def test_vllm_log() -> None:
    found = read_served(str(RECORDED / "vllm.log"))
    # 295 / 5 = 59 rounds at 5.44, and 670 / 5 = 134 at 1.00; the second could be 670 rounds of one draft each
    assert (found.rounds, found.accepted, found.proposed) == (193, 262, 965)
    assert found.length == pytest.approx(1 + 262 / 193)
    assert found.high == found.length
    assert found.low == pytest.approx(1 + 262 / (59.05 + 670), abs=1e-3)
    assert found.per_position == pytest.approx([58 / 193, 56 / 193, 54 / 193, 52 / 193, 42 / 193], abs=2e-4)


def test_between_two_scrapes_only_what_came_in_between_counts() -> None:
    before, after = (read_scrape(str(RECORDED / f"vllm_{name}.prom")) for name in ("before", "after"))
    found = served_between(before, after)
    assert figures(found) == pytest.approx(("vLLM", 2.0, 1.97, 2.0, 1000, 1000, 3000))
    assert found.per_position == pytest.approx((0.5, 0.3, 0.2))
    assert read_served(str(RECORDED / "vllm_after.prom")).length == pytest.approx(1 + 1150 / 1100)


def vllm_scrape(rounds: list[Round], k: int) -> str:
    """What vLLM counts for these rounds; metrics.py, observe_draft."""
    lines = [
        f'vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {len(rounds)}.0',
        f'vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {k * len(rounds)}.0',
        f'vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {sum(item.accepted for item in rounds)}.0',
    ]
    for place in range(k):
        count = sum(item.accepted > place for item in rounds)
        lines.append(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="{place}"}} {count}.0'
        )
    return "\n".join(lines) + "\n"


def sglang_response(rounds: list[Round], k: int) -> str:
    """What SGLang reports for these rounds; tokenizer_manager.py, _calculate_spec_decoding_metrics."""
    accepted, tokens = sum(item.accepted for item in rounds), 1 + sum(item.tokens for item in rounds)
    histogram = [sum(item.accepted == count for item in rounds) for count in range(max(item.accepted for item in rounds) + 1)]
    meta = {
        "finish_reason": {"type": "stop", "matched": 2},
        "completion_tokens": tokens,
        "spec_accept_rate": accepted / (k * len(rounds)),
        "spec_accept_length": tokens / len(rounds),
        "spec_num_correct_drafts": accepted,
        "spec_num_proposed_drafts": k * len(rounds),
        "spec_verify_ct": len(rounds),
        "spec_correct_drafts_histogram": histogram,
    }
    return json.dumps({"text": "", "meta_info": meta})


@pytest.mark.parametrize("ended", [False, True], ids=["the target's own token is the last", "an accepted draft ends the text"])
@pytest.mark.parametrize(("make", "exact"), [(vllm_scrape, False), (sglang_response, True)])
def test_an_engine_and_this_room_tell_the_same_of_the_same_rounds(tmp_path: Path, make: Any, exact: bool, ended: bool) -> None:
    rounds = [Round(3, 3, 4), Round(3, 0, 1), Round(3, 1, 2), Round(3, 2, 2 if ended else 3)]
    ours = measure([PromptRounds("a", tuple(rounds))])
    file = tmp_path / "reported"
    file.write_text(make(rounds, 3))
    found = read_served(str(file))
    assert found.per_position == pytest.approx(ours.per_position)
    assert (found.rounds, found.accepted, found.proposed) == (ours.rounds, ours.accepted, ours.proposed)
    # vLLM counts a token after the end that is none; its note says so
    assert found.length == pytest.approx(ours.length.value + (0 if exact or not ended else 0.25))
    assert any("end token" in note for note in found.notes) is not exact


def test_what_is_none_of_these_is_refused_with_what_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("hello\n")
    with pytest.raises(AcceptanceError, match="no figures of acceptance in it: it begins 'hello'; accepted are a scrape of Prom"):
        read_served(str(file))


@pytest.mark.parametrize("name", ["sglang_known.json", "vllm.log"])
def test_only_scrapes_are_taken_from_each_other(name: str) -> None:
    with pytest.raises(AcceptanceError, match="only counters can be taken from each other"):
        read_scrape(str(RECORDED / name))


def test_the_known_answers_of_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "served.md").read_text("utf-8")
    rows = [row.strip("| ").split(" | ") for row in text.split("## Known answers")[1].splitlines() if row.startswith("| `")]
    assert len(rows) == 10
    for name, _, *stated in rows:
        found = read_served(str(RECORDED / name.strip("`")))
        told = [f"{value:.3f}" if value is not None else "bounds" for value in (found.length, found.low, found.high)]
        assert told == stated, name
