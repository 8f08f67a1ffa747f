"""Acceptance figures that come with responses, of SGLang and vLLM -> figures of this room, request by request.

Where each rule is from:

- **SGLang** `meta_info` of `/generate` (`srt/managers/tokenizer_manager.py`, 0.5.16 and 0.5.23): `spec_verify_ct` counts
  verifications of the request, `spec_num_correct_drafts` its accepted drafts without the target's own token, `spec_accept_length`
  is completion_tokens / spec_verify_ct. The completion holds the token of prefill, which belongs to no round: a drafter that is
  never right reads 8 / 7 = 1.143 on 8 tokens there, and 1 here. It is cut at the length asked for and after the end token, and
  the accepted drafts are counted before that (`batch_result_processor.py`). Responses of the OpenAI API hold the same in
  `sglext`, `spec_tokens_details`, where the request asked with `return_spec_tokens_details` (0.5.23).
- **vLLM** `metrics.speculative_decoding` (docs/features/speculative_decoding/acceptance_metrics.md; the server runs with
  `--per-request-spec-decode-metrics`): steps, accepted and proposed drafts; mean_acceptance_length is 1 + accepted / steps, which
  is ours. Drafts are counted before the end of the text is looked for. Steps without drafts are left out.

A length is that of all requests together: sums over sums.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Final

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.served_result import SGLANG, VLLM, Served, shares
from specalign.acceptance.strict_json import kind

_MOST: Final = 10**15
"""Counts beyond it are none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What one response counted.

    Attributes:
        rounds, accepted, proposed: sums over its rounds.
        low, tokens: tokens gained as this room counts them: at least, and at most, which is what they are but for rounds whose
            tokens were cut off.
        by_position: (accepted, proposed) of each position; None if unknown.
        beyond: rounds that proposed a draft at each position beyond those, and accepted none of them.
    """

    rounds: int
    accepted: int
    proposed: int
    low: int
    tokens: int
    by_position: tuple[tuple[int, int], ...] | None
    beyond: int = 0


NO_ROUND: Final = Request(0, 0, 0, 0, 0, ())
"""The token of prefill was all."""


_WHAT: Final[Mapping[str, tuple[str, str]]] = {
    SGLANG: (
        "meta_info of responses",
        "(verifications + correct drafts) / verifications, and completion tokens - 1 in the numerator where a text ended by"
        " itself; spec_accept_length counts the token of prefill too, and is not taken",
    ),
    VLLM: ("metrics of responses", "1 + accepted drafts / steps, of all responses together"),
}


def served_of(engine: str, requests: Sequence[Request], where: str) -> Served:
    """Figures of all requests together.

    Raises:
        AcceptanceError: none of them has a round.
    """
    rounds, accepted = sum(item.rounds for item in requests), sum(item.accepted for item in requests)
    if not rounds:
        raise AcceptanceError(f"{where}: {len(requests)} responses and not one verification; ask for more than one token each")
    form, what = _WHAT[engine]
    rates: tuple[float, ...] = ()
    known = [(item.by_position, item.beyond) for item in requests if item.by_position is not None]
    if len(known) == len(requests):
        deepest = max(len(places) for places, _ in known)
        padded = [(*places, *((0, beyond),) * (deepest - len(places))) for places, beyond in known]
        columns = list(zip(*padded, strict=True))
        rates = shares(
            [sum(right for right, _ in at) for at in columns], [sum(asked for _, asked in at) for at in columns], where
        )
    length = sum(item.tokens for item in requests) / rounds
    return Served(
        engine,
        form,
        length,
        sum(item.low for item in requests) / rounds,
        length,
        rates,
        rounds,
        accepted,
        sum(item.proposed for item in requests),
        what,
    )


def sglang_request(record: Mapping[str, object], place: str) -> Request:
    """The counts of one response of `/generate`.

    Raises:
        AcceptanceError: no speculative figures in it, or they contradict each other.
    """
    meta = as_object(record["meta_info"], "meta_info", place)
    completion = count(meta, "completion_tokens", place)
    if "spec_verify_ct" not in meta:
        if completion <= 1:
            return NO_ROUND
        raise AcceptanceError(
            f"{place}: meta_info without spec_verify_ct; known are SGLang 0.5.16 to 0.5.23 with a --speculative-algorithm. Is it"
            " on?"
        )
    reason = meta.get("finish_reason")
    ended = isinstance(reason, dict) and reason.get("type") == "stop"
    retracted = count(meta, "num_retractions", place) if "num_retractions" in meta else 0
    return _sglang(meta, completion - retracted, ended, completion, place)


def sglang_openai_request(record: Mapping[str, object], place: str) -> Request:
    """The counts of one response of SGLang's OpenAI API; raises as `sglang_request`."""
    details = as_object(record["sglext"], "sglext", place).get("spec_tokens_details")
    if not isinstance(details, dict):
        raise AcceptanceError(
            f"{place}: spec_tokens_details of sglext is {kind(details)}, and one object is wanted; ask with"
            " return_spec_tokens_details and for one answer (n = 1)"
        )
    completion = count(as_object(record.get("usage"), "usage", place), "completion_tokens", place)
    return _sglang(details, completion, finish_reason(record) == "stop", completion, place)


def _sglang(figures: Mapping[str, object], known: int, ended: bool, completion: int, place: str) -> Request:
    rounds = count(figures, "spec_verify_ct", place)
    accepted = count(figures, "spec_num_correct_drafts", place)
    proposed = count(figures, "spec_num_proposed_drafts", place)
    require(accepted <= proposed and bool(rounds) == bool(proposed), f"{accepted} of {proposed} drafts in {rounds} rounds", place)
    if not rounds:
        return NO_ROUND
    agree(figures, "spec_accept_length", completion / rounds, "completion_tokens / spec_verify_ct", place)
    agree(figures, "spec_accept_rate", accepted / proposed, "correct / proposed drafts", place)
    kept = known - 1
    require(
        rounds <= kept <= rounds + accepted, f"{kept} tokens after the first in {rounds} rounds with {accepted} drafts", place
    )
    counts = histogram(figures, "spec_correct_drafts_histogram", rounds, accepted, place)
    reached = tuple((sum(counts[depth:]), rounds) for depth in range(1, len(counts))) if counts else None
    return Request(rounds, accepted, proposed, kept, kept if ended else rounds + accepted, reached, rounds)


def vllm_request(record: Mapping[str, object], place: str) -> Request:
    """The counts of one response of vLLM; raises as `sglang_request`."""
    figures = as_object(record["metrics"], "metrics", place).get("speculative_decoding")
    if not isinstance(figures, dict):
        raise AcceptanceError(
            f"{place}: speculative_decoding of metrics is {kind(figures)}, and an object is wanted; start vLLM with"
            " --per-request-spec-decode-metrics summary, and ask for one answer (n = 1)"
        )
    rounds = count(figures, "num_spec_steps", place)
    accepted = count(figures, "num_accepted_draft_tokens", place)
    proposed = count(figures, "num_draft_tokens", place)
    require(accepted <= proposed, f"{accepted} of {proposed} drafts in {rounds} rounds", place)
    if not rounds:
        return NO_ROUND
    agree(figures, "mean_acceptance_length", 1 + accepted / rounds, "1 + accepted / steps", place)
    counts = histogram(figures, "acceptance_histogram", rounds, accepted, place)
    k = len(counts) - 1 if counts else proposed
    tokens = rounds + accepted
    low = tokens if finish_reason(record) == "length" else max(rounds, tokens - k)
    return Request(rounds, accepted, proposed, low, tokens, _by_draft_length(figures, rounds, accepted, proposed, place))


def _by_draft_length(
    figures: Mapping[str, object], rounds: int, accepted: int, proposed: int, place: str
) -> tuple[tuple[int, int], ...] | None:
    """(accepted, proposed) of each position out of rows of rounds that proposed 0, 1, … drafts; None if they are not told."""
    key = "acceptance_histogram_by_draft_length"
    if not figures.get(key):
        return None
    rows: dict[int, Sequence[int]] = {}
    for name, row in as_object(figures[key], key, place).items():
        require(name.isascii() and name.isdecimal() and len(name) < 5, f"{key} with a row for {name[:20]!r} drafts", place)
        rows[int(name)] = counts_of(row, key, place)
        require(len(rows[int(name)]) == int(name) + 1, f"{key} with {len(rows[int(name)])} counts for {name} drafts", place)
    sums = (
        sum(map(sum, rows.values())),
        sum(depth * item for row in rows.values() for depth, item in enumerate(row)),
        sum(drafts * sum(row) for drafts, row in rows.items()),
    )
    require(sums == (rounds, accepted, proposed), f"{key} sums to {sums}, and {(rounds, accepted, proposed)} are stated", place)
    return tuple(
        (
            sum(sum(row[depth:]) for row in rows.values()),
            sum(sum(row) for drafts, row in rows.items() if drafts >= depth),
        )
        for depth in range(1, max(rows) + 1)
    )


# What is read out of a response.


def as_object(value: object, what: str, place: str) -> Mapping[str, object]:
    """A value that has to be an object."""
    if not isinstance(value, dict):
        raise AcceptanceError(
            f"{place}: {what} is {kind(value)}, and an object is wanted; give the response as the server sent it"
        )
    return value


def count(figures: Mapping[str, object], key: str, place: str) -> int:
    """A whole number from 0."""
    value = figures.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        what = f"is {kind(value)}" if key in figures else "is missing"
        raise AcceptanceError(
            f"{place}: {key} {what}, and a whole number from 0 is wanted; give the response as the server sent it"
        )
    return value


def number(figures: Mapping[str, object], key: str, place: str) -> float:
    """A finite number."""
    value = figures.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MOST:
        raise AcceptanceError(f"{place}: {key} is {kind(value)}, and a number is wanted; give the response as the server sent it")
    return float(value)


def require(holds: bool, what: str, place: str) -> None:
    """Refuses counts that no run gives."""
    if not holds:
        raise AcceptanceError(
            f"{place}: {what}: no run counts so; give the response as the server sent it, with the engine's version"
        )


def agree(figures: Mapping[str, object], key: str, expected: float, rule: str, place: str) -> None:
    """Refuses a mean that is not what this module takes it for: another version may define it otherwise."""
    if key in figures and not math.isclose(number(figures, key, place), expected, rel_tol=1e-4):
        raise AcceptanceError(
            f"{place}: {key} is {number(figures, key, place):.6g}, and {rule} is {expected:.6g}: this version defines its figures"
            " otherwise than those known here, so nothing is concluded from them"
        )


def counts_of(value: object, key: str, place: str) -> Sequence[int]:
    """A list of counts."""
    if not isinstance(value, list) or any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in value):
        raise AcceptanceError(f"{place}: {key} is {kind(value)}, and a list of counts is wanted; give it as it was sent")
    return value


def histogram(figures: Mapping[str, object], key: str, rounds: int, accepted: int, place: str) -> Sequence[int]:
    """How many rounds accepted 0, 1, … drafts; empty if it is not told."""
    if not figures.get(key):
        return ()
    value = counts_of(figures[key], key, place)
    total, drafts = sum(value), sum(depth * item for depth, item in enumerate(value))
    told = f"{key} has {total} rounds with {drafts} drafts, and {rounds} with {accepted} are stated"
    require(total == rounds and drafts == accepted, told, place)
    return value


def finish_reason(record: Mapping[str, object]) -> object:
    """That of the first choice of an OpenAI response; None if it is not told."""
    choices = record.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first.get("finish_reason") if isinstance(first, dict) else None
