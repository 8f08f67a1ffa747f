"""Prometheus counters of vLLM, TensorRT-LLM and SGLang -> figures of this room; one scrape, or the difference of two.

Where each rule is from:

- **vLLM** (`vllm/v1/spec_decode/metrics.py`, V1): one draft is counted for each request in each step that verifies drafts, with
  its proposed and accepted drafts; mean acceptance length there is 1 + accepted / drafts, which is ours. `scheduler.py` counts
  `len(generated_token_ids) - 1` as accepted before it looks for the end of the text. Steps without drafts (an n-gram drafter that
  found nothing) are not counted. Metric names with a DP engine's label: vllm-project/vllm pull request 24049.
- **TensorRT-LLM** (`tensorrt_llm/metrics/collector.py`): drafted and accepted drafts by `token_position`, of finished requests;
  each verification with drafts has one at position 0. Whether drafts behind the end token are left out depends on its sampler, so
  they are taken not to be. The totals `spec_decode_num_*_tokens_total` beside them do not tell how many rounds there were.
- **SGLang** (`srt/observability/metrics_collector.py` of 0.5.16 and 0.5.23): `spec_accept_length` is a gauge of the last decode
  log interval: (accepted + rounds) / rounds, which is ours. Counters over all traffic: `spec_verify_calls_total`,
  `generation_tokens_total` and `num_requests_total`, of finished requests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.served_prometheus import Sample, read_samples
from specalign.acceptance.served_result import END_NOT_KNOWN, SGLANG, TENSORRT_LLM, VLLM, Served, of_means, shares
from specalign.layer_ids.files import quoted

_COUNTERS: Final[Mapping[str, str]] = {
    "vllm:spec_decode_num_drafts_total": VLLM,
    "vllm:spec_decode_num_draft_tokens_total": VLLM,
    "vllm:spec_decode_num_accepted_tokens_total": VLLM,
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": VLLM,
    "vllm:request_success_total": VLLM,
    "trtllm_spec_decode_drafted_tokens_total": TENSORRT_LLM,
    "trtllm_spec_decode_accepted_tokens_total": TENSORRT_LLM,
    "trtllm_spec_decode_num_draft_tokens_total": TENSORRT_LLM,
    "trtllm_spec_decode_num_accepted_tokens_total": TENSORRT_LLM,
    "trtllm_request_success_total": TENSORRT_LLM,
    "sglang:spec_verify_calls_total": SGLANG,
    "sglang:generation_tokens_total": SGLANG,
    "sglang:num_requests_total": SGLANG,
}
_GAUGES: Final[Mapping[str, str]] = {
    "sglang:spec_accept_length": SGLANG,
    "sglang:spec_num_steps": SGLANG,
}
_CREATED: Final[Mapping[str, str]] = {name.removesuffix("_total") + "_created": engine for name, engine in _COUNTERS.items()}
"""When a counter began to count; left out where several processes answer for one server."""

_MOST: Final = 2**53
"""Whole numbers beyond it are not told apart by the format's floats."""

_NAMES: Final = {**_COUNTERS, **_GAUGES, **_CREATED}

_HOW_TO_SWITCH_ON: Final[Mapping[str, tuple[str, str]]] = {
    VLLM: ("vllm:", "start the server with a --speculative-config; figures come with the V1 engine"),
    SGLANG: (
        "sglang:",
        "start the server with a --speculative-algorithm and --enable-metrics, and let it decode something first",
    ),
    TENSORRT_LLM: (
        "trtllm_",
        "start the server with a speculative_config and return_perf_metrics, and let a request finish first",
    ),
}
"""Engine -> (how its metrics begin, how it comes to report acceptance)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scrape:
    """One look at an engine's metrics.

    Attributes:
        engine: whose they are.
        where: file or URL.
        samples: of the metrics that tell of acceptance, counters and gauges.
    """

    engine: str
    where: str
    samples: tuple[Sample, ...]


def scrape_of(text: str, where: str) -> Scrape:
    """The samples of a scrape.

    Raises:
        AcceptanceError: no engine's speculative metrics are in it, or those of two engines; a line is broken; a counter is no
            whole number from 0.
    """
    samples = read_samples(text, _NAMES, where)
    engines = {_NAMES[item.name] for item in samples if "spec_" in item.name}
    if not engines:
        for engine, (prefix, how) in _HOW_TO_SWITCH_ON.items():
            if any(line.startswith(prefix) for line in text.split("\n")):
                raise AcceptanceError(f"{where}: metrics of {engine}, and none of speculative decoding among them; {how}")
        raise AcceptanceError(
            f"{where}: a scrape, and none of its metrics is of {', '.join(_HOW_TO_SWITCH_ON)}; is this their server?"
        )
    if len(engines) > 1:
        raise AcceptanceError(f"{where}: metrics of {' and '.join(sorted(engines))} in one scrape; give that of one server")
    for item in samples:
        if not 0 <= item.value <= _MOST or (item.name in _COUNTERS and item.value != int(item.value)):
            raise AcceptanceError(f"{where}: {quoted(item.series)} is {item.value:g}, and counters count in whole numbers from 0")
    return Scrape(engines.pop(), where, samples)


def served_of(scrape: Scrape) -> Served:
    """Figures of everything a server counted since it started, other people's requests and warm-up included.

    Raises:
        AcceptanceError: no round was counted yet, figures are missing, or contradict each other.
    """
    return _RULES[scrape.engine](scrape)


def served_between(first: Scrape, second: Scrape) -> Served:
    """Figures of what a server counted between two scrapes: all traffic of that time, and nothing before it.

    Raises:
        AcceptanceError: as `served_of`; the engines differ, or the server restarted in between: a counter went backwards, is
            gone, or began to count at another time.
    """
    where = f"{first.where} and {second.where}"
    if first.engine != second.engine:
        raise AcceptanceError(f"{where}: metrics of {first.engine} and of {second.engine}; give two scrapes of one server")
    before = {item.series: item.value for item in first.samples if item.name not in _GAUGES}
    after = {item.series: item.value for item in second.samples}
    for series, value in before.items():
        restarted = f"{where}: the server restarted in between, or these are two servers, or in the wrong order: {quoted(series)}"
        if series not in after:
            raise AcceptanceError(f"{restarted} is gone; scrape one server twice")
        if series.split("{")[0] in _CREATED and after[series] != value:
            raise AcceptanceError(f"{restarted} was {value:.3f} and is {after[series]:.3f}; scrape one server twice")
        if after[series] < value:
            raise AcceptanceError(f"{restarted} went from {value:g} back to {after[series]:g}; scrape one server twice")
    for item in first.samples:
        if item.name == "sglang:spec_num_steps" and after.get(item.series, item.value) != item.value:
            raise AcceptanceError(
                f"{where}: {quoted(item.series)} was {item.value:g} and is {after[item.series]:g}: chains of two depths are in"
                " between; scrape again"
            )
    # The gauge of a length is of the last interval only, and that may have begun before the first scrape.
    samples = [
        dataclasses.replace(item, value=item.value - before.get(item.series, 0)) if item.name in _COUNTERS else item
        for item in second.samples
        if item.name != "sglang:spec_accept_length"
    ]
    return served_of(Scrape(second.engine, where, tuple(samples)))


def _sum(scrape: Scrape, name: str) -> int | None:
    """Over all series of a counter: engines, ranks and models of one server together. None if it has none."""
    values = [item.value for item in scrape.samples if item.name == name]
    return int(sum(values)) if values else None


def _by_position(scrape: Scrape, name: str, label: str) -> list[int]:
    """Sums by position, from 0; positions without a series have 0."""
    sums: dict[int, int] = {}
    for item in scrape.samples:
        if item.name == name:
            text = item.label(label) or ""
            if not text.isascii() or not text.isdecimal() or len(text) > 4:
                raise AcceptanceError(f"{scrape.where}: {quoted(item.series)} has no position in its label {label}")
            sums[int(text)] = sums.get(int(text), 0) + int(item.value)
    return [sums.get(place, 0) for place in range(max(sums, default=-1) + 1)]


def _ended(scrape: Scrape, name: str) -> int | None:
    """Requests whose text may have ended in a round, not by its length; None if not told."""
    found = [item for item in scrape.samples if item.name == name]
    return int(sum(item.value for item in found if item.label("finished_reason") != "length")) if found else None


def _verified(
    scrape: Scrape, *, rounds: int, accepted: int, proposed: int, rates: tuple[float, ...], k: int, ended: int | None, what: str
) -> Served:
    """Figures of rounds whose accepted drafts were counted before the end of the text was looked for."""
    if not rounds:
        raise AcceptanceError(
            f"{scrape.where}: no round was verified in it, so no length is known; send requests, and scrape again"
        )
    if not 0 <= accepted <= proposed:
        raise AcceptanceError(f"{scrape.where}: {accepted} of {proposed} drafts accepted; take it again while the server is idle")
    length = 1 + accepted / rounds
    low = length if ended is None or not k else max(1.0, (rounds + accepted - k * ended) / rounds)
    notes = (END_NOT_KNOWN,) if ended is None or not k else ()
    form = "Prometheus counters"
    return Served(scrape.engine, form, length, low, length, rates, rounds, accepted, proposed, what, notes)


def _vllm(scrape: Scrape) -> Served:
    rounds = _sum(scrape, "vllm:spec_decode_num_drafts_total")
    proposed = _sum(scrape, "vllm:spec_decode_num_draft_tokens_total")
    accepted = _sum(scrape, "vllm:spec_decode_num_accepted_tokens_total")
    if rounds is None or proposed is None or accepted is None:
        raise AcceptanceError(
            f"{scrape.where}: of vLLM's counters one of spec_decode_num_drafts, _draft_tokens, _accepted_tokens is missing, and"
            " without it no length is known; give the whole scrape"
        )
    by_position = _by_position(scrape, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
    if by_position and sum(by_position) != accepted:
        raise AcceptanceError(
            f"{scrape.where}: {accepted} drafts accepted, and {sum(by_position)} by position; take it again while the server is"
            " idle"
        )
    k = len(by_position)
    full = proposed == k * rounds
    rates = shares(by_position, [rounds] * k, scrape.where) if full and rounds else ()
    found = _verified(
        scrape,
        rounds=rounds,
        accepted=accepted,
        proposed=proposed,
        rates=rates,
        k=k,
        ended=_ended(scrape, "vllm:request_success_total"),
        what="1 + accepted / drafts of vLLM's counters; one draft is one round, and the token of prefill is in neither",
    )
    if full:
        return found
    most = f" and {k} at most" if k else ""
    note = f"rounds proposed {proposed / rounds:.2f} drafts on average{most}, so what reached a position is not known"
    return dataclasses.replace(found, notes=(*found.notes, note))


def _tensorrt_llm(scrape: Scrape) -> Served:
    proposed = _by_position(scrape, "trtllm_spec_decode_drafted_tokens_total", "token_position")
    accepted = _by_position(scrape, "trtllm_spec_decode_accepted_tokens_total", "token_position")
    if not proposed:
        raise AcceptanceError(
            f"{scrape.where}: TensorRT-LLM's totals do not tell how many rounds there were, and its gauge is of one iteration;"
            " start it with return_perf_metrics for the counters by token_position, or give the JSON of /metrics"
            " (enable_iter_perf_stats)"
        )
    accepted += [0] * (len(proposed) - len(accepted))
    if len(accepted) > len(proposed):
        raise AcceptanceError(f"{scrape.where}: position {len(accepted) - 1} accepted drafts and proposed none; take it again")
    return _verified(
        scrape,
        rounds=proposed[0],
        accepted=sum(accepted),
        proposed=sum(proposed),
        rates=shares(accepted, proposed, scrape.where),
        k=len(proposed),
        ended=_ended(scrape, "trtllm_request_success_total"),
        what="1 + accepted drafts of all positions / drafts at position 0 of TensorRT-LLM's counters of finished requests; each"
        " round has one draft at position 0",
    )


def _sglang(scrape: Scrape) -> Served:
    rounds = _sum(scrape, "sglang:spec_verify_calls_total")
    tokens, requests = _sum(scrape, "sglang:generation_tokens_total"), _sum(scrape, "sglang:num_requests_total")
    if rounds and tokens is not None and requests is not None:
        return _sglang_counters(scrape, rounds, tokens, requests)
    means = [item.value for item in scrape.samples if item.name == "sglang:spec_accept_length" and item.value]
    if not means:
        raise AcceptanceError(
            f"{scrape.where}: no finished request of SGLang was verified in it (spec_verify_calls_total with"
            " generation_tokens_total and num_requests_total), so no length is known; is speculation on? Let requests finish,"
            " and scrape again, or give their meta_info"
        )
    if min(means) < 1:
        raise AcceptanceError(f"{scrape.where}: a spec_accept_length of {min(means):g}, and each round gains at least 1 token")
    return of_means(
        SGLANG,
        "Prometheus gauge",
        means,
        half=0.0,
        unit="ranks",
        what="spec_accept_length as it is: SGLang's gauge is (accepted + rounds) / rounds, without the token of prefill",
        notes=("of the last decode log interval only, 40 steps by default; how many rounds it had is not known", END_NOT_KNOWN),
    )


def _sglang_counters(scrape: Scrape, rounds: int, tokens: int, requests: int) -> Served:
    """Kept tokens are a lower bound: the last round of a text that reaches its length may have gained up to k more."""
    gained = tokens - requests
    steps = max((int(item.value) for item in scrape.samples if item.name == "sglang:spec_num_steps"), default=0)
    if gained < rounds:
        raise AcceptanceError(
            f"{scrape.where}: {tokens} tokens of {requests} requests in {rounds} rounds is less than a token a round; are other"
            " requests than finished ones in these counters (aborted, of a prefill worker)? Give the meta_info of your requests"
        )
    if not steps:
        raise AcceptanceError(
            f"{scrape.where}: without the gauge spec_num_steps only a lower bound is known, {gained / rounds:.3f}; give the"
            " whole scrape"
        )
    high = min(gained + steps * requests, (steps + 1) * rounds) / rounds
    return Served(
        SGLANG,
        "Prometheus counters",
        None,
        gained / rounds,
        max(high, gained / rounds),
        (),
        rounds,
        None,
        None,
        "between (generated tokens - requests) / verify calls, which takes the token of prefill off each request, and the same"
        " with spec_num_steps more tokens for each request, whose last round may have been cut at the length asked for",
        (
            "bounds, no value: for a value give the meta_info of the responses",
            "a request that was retracted and prefilled again counts one token too many each time",
        ),
    )


_RULES: Final[Mapping[str, Callable[[Scrape], Served]]] = {VLLM: _vllm, SGLANG: _sglang, TENSORRT_LLM: _tensorrt_llm}
