"""Lines of a server's log, of vLLM and SGLang -> figures of this room.

Where each rule is from:

- **vLLM** `SpecDecoding metrics: …` (`vllm/v1/spec_decode/metrics.py`, V1, in the wordings before and after pull request 24127):
  of one log interval accepted and drafted tokens, the mean 1 + accepted / drafts with 2 decimals, and accepted of each position
  over drafts with 3. How many drafts (rounds) there were is not printed. Where each proposed as many as there are positions it is
  drafted / positions, if the printed figures agree with that; their rounding bounds it anyway.
- **SGLang** `Decode batch, … accept len: 2.90, accept rate: 0.63, …` (`scheduler_components/metrics_reporter.py` of 0.5.16 and
  0.5.23): (accepted + rounds) / rounds of one log interval with 2 decimals, which is ours. How many rounds it had is not printed.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Final

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.served_result import END_NOT_KNOWN, SGLANG, VLLM, Served, of_means
from specalign.layer_ids.files import quoted

_VLLM_LINE: Final = "SpecDecoding metrics:"
_SGLANG_LINE: Final = re.compile(r"Decode batch.*?[ ,]accept len: ([0-9]{1,9}\.[0-9]{2})(?![0-9])")
_MEAN: Final = re.compile(r"Mean acceptance length: ([0-9]{1,9}\.[0-9]{2}|nan)(?![0-9])")
_ACCEPTED: Final = re.compile(r"[ ,]Accepted: ([0-9]{1,12}) tokens")
_DRAFTED: Final = re.compile(r"[ ,]Drafted: ([0-9]{1,12}) tokens")
_RATES: Final = re.compile(r"Per-position acceptance rate: ((?:[0-9]\.[0-9]{3}(?:, )?)+)")
_HALF: Final = 0.005
"""Half of the last of 2 decimals."""
_HALF_SHARE: Final = 0.0005
_SLACK: Final = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class _Interval:
    """One line of vLLM.

    Attributes:
        least, most: what its rounds are between.
        rates: accepted over rounds of each position.
    """

    accepted: int
    drafted: int
    least: float
    most: float
    rates: tuple[float, ...]

    @property
    def full(self) -> int | None:
        """Rounds if each proposed as many drafts as there are positions; None if that cannot be."""
        rounds, over = divmod(self.drafted, len(self.rates))
        return rounds if not over and self.least <= rounds + _SLACK else None


def looks_like_log(text: str) -> bool:
    """Whether a line tells of acceptance."""
    return _VLLM_LINE in text or any(_SGLANG_LINE.search(line) for line in text.split("\n") if "accept len: " in line)


def served_of_log(text: str, where: str) -> Served:
    """Figures of all lines together.

    Raises:
        AcceptanceError: lines of two engines; a line of vLLM is cut short or contradicts itself; nothing was verified.
    """
    lines = list(enumerate(text.split("\n"), 1))
    vllm = [_interval(line, f"{where}, line {number}") for number, line in lines if _VLLM_LINE in line]
    sglang = [float(match[1]) for _, line in lines if "accept len: " in line and (match := _SGLANG_LINE.search(line))]
    if vllm and sglang:
        raise AcceptanceError(f"{where}: lines of {VLLM} and of {SGLANG}; give the log of one server")
    return _vllm(vllm, where) if vllm else _sglang(sglang, where)


def _sglang(means: Sequence[float], where: str) -> Served:
    if not means or min(means) < 1:
        found = f"an accept len of {min(means):g}" if means else "no accept len"
        raise AcceptanceError(
            f"{where}: {found} in SGLang's lines, and each round gains at least 1 token; is this the whole line?"
        )
    return of_means(
        SGLANG,
        "log",
        means,
        half=_HALF,
        unit="log intervals",
        what="accept len as it is: SGLang's mean is (accepted + rounds) / rounds, without the token of prefill, rounded to 2"
        " decimals",
        notes=("for a value give the meta_info of the responses, or /server_info", END_NOT_KNOWN),
    )


def _interval(line: str, place: str) -> _Interval:
    line = line[line.index(_VLLM_LINE) :]
    mean, accepted, drafted, rates = (pattern.search(line) for pattern in (_MEAN, _ACCEPTED, _DRAFTED, _RATES))
    if mean is None or accepted is None or drafted is None or rates is None:
        raise AcceptanceError(
            f"{place}: of Mean acceptance length, Accepted, Drafted and Per-position acceptance rate one is missing:"
            f" {quoted(line)}; give the whole line, as vLLM's V1 engine prints it"
        )
    right, asked = int(accepted[1]), int(drafted[1])
    shares = tuple(float(item) for item in rates[1].strip(", ").split(", "))
    if not asked:
        return _Interval(0, 0, 0, 0, shares)
    printed, k, total = float(mean[1]), len(shares), sum(shares)
    # A round proposes k drafts at most. How far the printed figures are rounded bounds the rounds from both sides.
    least = max(asked / k, right / (printed - 1 + _HALF + _SLACK), right / (total + k * _HALF_SHARE + _SLACK))
    most = min(float(asked), _over(right, printed - 1 - _HALF - _SLACK), _over(right, total - k * _HALF_SHARE - _SLACK))
    if right > asked or math.isnan(printed) or printed < 1 or least > most + _SLACK:
        raise AcceptanceError(
            f"{place}: {right} of {asked} drafts accepted at a mean of {printed:g} and shares of {rates[1].strip(', ')}: no"
            " number of rounds gives that; is this one line, as it was printed?"
        )
    return _Interval(right, asked, least, most, shares)


def _over(right: int, mean: float) -> float:
    return right / mean if right and mean > 0 else math.inf


def _vllm(intervals: Sequence[_Interval], where: str) -> Served:
    accepted, drafted = sum(item.accepted for item in intervals), sum(item.drafted for item in intervals)
    least, most = sum(item.least for item in intervals), sum(item.most for item in intervals)
    if not drafted:
        raise AcceptanceError(f"{where}: {len(intervals)} lines of vLLM and not one draft; let it decode something")
    full = [item.full for item in intervals if item.drafted]
    rounds = sum(item for item in full if item is not None) if None not in full else None
    rates: tuple[float, ...] = ()
    if rounds and len({len(item.rates) for item in intervals}) == 1:
        weighed = [(item.rates, item.full or 0) for item in intervals]
        rates = tuple(sum(shares[at] * count for shares, count in weighed) / rounds for at in range(len(weighed[0][0])))
    open_rounds = "rounds proposed fewer drafts than there are positions, so their number has bounds and no value"
    if rounds:
        open_rounds = "takes every round to have proposed as many drafts as there are positions, as far as the printed means tell"
    return Served(
        VLLM,
        "log",
        1 + accepted / rounds if rounds else None,
        1 + accepted / most,
        1 + accepted / least,
        rates,
        rounds,
        accepted,
        drafted,
        "1 + accepted / rounds, summed over the lines; rounds are drafted / positions where the printed mean agrees with that,"
        " else accepted / (mean - 1) within its rounding",
        (open_rounds, END_NOT_KNOWN),
    )
