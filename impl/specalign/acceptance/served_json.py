"""JSON of an engine: what kind it is, and the kinds that are no responses.

Where each rule is from:

- **TensorRT-LLM** iteration statistics, the JSON of `/metrics` (`enable_iter_perf_stats`; `py_executor.py` `_update_iter_stats`,
  and `cpp/include/tensorrt_llm/executor/types.h`): of each iteration numRequestsWithDraftTokens, which is its verifications,
  numAcceptedTokens and numDraftTokens; acceptanceLength is (accepted + requests) / requests, which is ours, of one iteration. The
  sums weigh the iterations, as `compute_acceptance_length` of its own accuracy tests does since NVIDIA/TensorRT-LLM pull request
  17474. Drafts whose id is 0 are not counted as proposed. `/metrics` hands each iteration out once: a second look is a difference
  already.
- **SGLang** `/server_info` (`scheduler_components/internal_state.py` of 0.5.23, `scheduler.py` of 0.5.16): avg_spec_accept_length
  of each DP rank since its start, (accepted + rounds) / rounds, which is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.served_responses import (
    agree,
    as_object,
    count,
    number,
    require,
    served_of,
    sglang_openai_request,
    sglang_request,
    vllm_request,
)
from specalign.acceptance.served_result import END_NOT_KNOWN, SGLANG, TENSORRT_LLM, VLLM, Served, of_means
from specalign.acceptance.strict_json import kind, numbered_lines, parse

_Placed: TypeAlias = tuple[str, Mapping[str, object]]

_ACCEPTED: Final = (
    "accepted are responses of SGLang (meta_info, or sglext with spec_tokens_details) and vLLM (metrics with"
    " speculative_decoding), SGLang's /server_info (internal_states) and TensorRT-LLM's iteration statistics"
    " (specDecodingStats), as one JSON document, a list or one a line"
)


def served_of_json(text: str, where: str) -> Served:
    """Figures of a JSON document, a list of them, or one a line.

    Raises:
        AcceptanceError: no JSON; of no known kind, or of several; without figures, or with figures that contradict each other.
    """
    records = list(_records(text, where))
    if not records:
        raise AcceptanceError(
            f"{where}: an empty list; TensorRT-LLM gives one when nothing ran since the last look: send requests first"
        )
    kinds = [_kind(record, place) for place, record in records]
    if len(set(kinds)) > 1:
        other = next(at for at, name in enumerate(kinds) if name != kinds[0])
        raise AcceptanceError(
            f"{records[other][0]}: holds {kinds[other]}, and {records[0][0]} holds {kinds[0]}; give one kind, of one engine"
        )
    return _RULES[kinds[0]](records, where)


def _records(text: str, where: str) -> Iterator[_Placed]:
    stripped = text.strip()
    if stripped.startswith("[") or "\n" not in stripped or not stripped.split("\n")[0].rstrip().endswith("}"):
        value = parse(stripped, where)  # a list, one document, or one that is indented
        if isinstance(value, list):
            for place, item in enumerate(value):
                yield _placed(item, f"{where}, entry {place}")
        else:
            yield _placed(value, where)
        return
    for number_of, line in numbered_lines(text.encode(), where):
        yield _placed(parse(line, f"{where}, line {number_of}"), f"{where}, line {number_of}")


def _placed(value: object, place: str) -> _Placed:
    if isinstance(value, str):  # TensorRT-LLM's statistics come as text in some versions
        value = parse(value, place)
    if not isinstance(value, dict):
        raise AcceptanceError(f"{place}: found {kind(value)}; {_ACCEPTED}")
    return place, value


def _kind(record: Mapping[str, object], place: str) -> str:
    found = [key for key in _RULES if key in record]
    if not found and "iter" in record:
        return "specDecodingStats"  # an iteration without speculation
    if not found:
        raise AcceptanceError(f"{place}: found {kind(record)}; {_ACCEPTED}")
    return found[0]


def _sglang(records: Sequence[_Placed], where: str) -> Served:
    return served_of(SGLANG, [sglang_request(record, place) for place, record in records], where)


def _sglang_openai(records: Sequence[_Placed], where: str) -> Served:
    return served_of(SGLANG, [sglang_openai_request(record, place) for place, record in records], where)


def _vllm(records: Sequence[_Placed], where: str) -> Served:
    return served_of(VLLM, [vllm_request(record, place) for place, record in records], where)


def _server_info(records: Sequence[_Placed], where: str) -> Served:
    if len(records) > 1:
        raise AcceptanceError(f"{where}: {len(records)} states of servers; give one")
    place, record = records[0]
    states = record["internal_states"]
    if not isinstance(states, list):
        raise AcceptanceError(f"{place}: internal_states is {kind(states)}, and a list is wanted; give the answer as it was sent")
    key = "avg_spec_accept_length"
    ranks = [as_object(state, "an internal state", place) for state in states]
    means = [number(rank, key, place) for rank in ranks if key in rank]
    if not means:
        raise AcceptanceError(
            f"{place}: no {key} in internal_states; is speculation on, and has the server decoded anything yet?"
        )
    require(min(means) >= 1, f"{key} is {min(means):g}, and each round gains at least 1 token", place)
    return of_means(
        SGLANG,
        "server_info",
        means,
        half=0.0,
        unit="ranks",
        what="avg_spec_accept_length as it is: SGLang's mean is (accepted + rounds) / rounds, without the token of prefill",
        notes=("of everything since the server's start, warm-up and other people's requests included", END_NOT_KNOWN),
    )


def _iterations(records: Sequence[_Placed], where: str) -> Served:
    rounds = accepted = proposed = 0
    seen: set[object] = set()
    for place, record in records:
        step = record.get("iter")
        if isinstance(step, int):
            require(step not in seen, f"iteration {step} comes twice (one row a rank, or two files in one)", place)
            seen.add(step)
        stats = record.get("specDecodingStats")
        if not stats:
            continue
        figures = as_object(stats, "specDecodingStats", place)
        requests, right = count(figures, "numRequestsWithDraftTokens", place), count(figures, "numAcceptedTokens", place)
        proposed += count(figures, "numDraftTokens", place)
        if requests:
            agree(figures, "acceptanceLength", (right + requests) / requests, "(accepted + requests) / requests", place)
            rounds, accepted = rounds + requests, accepted + right
    if not rounds:
        raise AcceptanceError(
            f"{where}: {len(records)} iterations, and none verified drafts; is speculation on? Send requests, and look again"
            " after them"
        )
    length = 1 + accepted / rounds
    return Served(
        TENSORRT_LLM,
        "iteration statistics",
        length,
        length,
        length,
        (),
        rounds,
        accepted,
        proposed,
        "1 + accepted drafts / requests with drafts, summed over iterations; a mean of acceptanceLength would not weigh them",
        (END_NOT_KNOWN, "a draft whose token id is 0 is not counted as proposed by TensorRT-LLM"),
    )


_RULES: Final[Mapping[str, Callable[[Sequence[_Placed], str], Served]]] = {
    "meta_info": _sglang,
    "sglext": _sglang_openai,
    "metrics": _vllm,
    "internal_states": _server_info,
    "specDecodingStats": _iterations,
}
"""The key that tells a kind -> how it is read."""
