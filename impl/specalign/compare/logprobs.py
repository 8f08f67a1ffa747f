"""Do the trainer and the sampler give the same log-probs for the same tokens?

RL with a Megatron trainer and an SGLang sampler computes each response token's log-prob twice. The two must agree: to the bit
where the engines are aligned, within thresholds otherwise. numpy only; torch tensors are taken without importing torch.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

import numpy as np

from specalign.compare.logprob_inputs import Bool, Float64, Side, check_lengths, read_logprobs, read_mask

_NEXT: Final = "compare layerwise dumps of both sides for this sample up to this token: the first layer that differs is the cause"


@dataclasses.dataclass(frozen=True, slots=True)
class TokenPair:
    """One response token.

    Attributes:
        sample, token: index of the sample, and of the token in it (tokens under the mask count).
        train, rollout: its log-prob on either side, in nats.
    """

    sample: int
    token: int
    train: float
    rollout: float

    def format(self) -> str:
        """`sample 3, token 17: train -1.25, rollout -1.5`."""
        return f"sample {self.sample}, token {self.token}: train {self.train!r}, rollout {self.rollout!r}"


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds, inclusive, in nats; None where there is none. A figure that is NaN is beyond every bound.

    Attributes:
        mean_abs: of `LogprobReport.mean_abs`, or of `mean_abs_per_sample` where `per_sample` is set.
        max_abs, kl_k3: of the figures with these names.
        per_sample: weigh samples alike, however many tokens they have.

    Raises:
        ValueError: a bound that is no finite number of at least 0; `per_sample` without `mean_abs`.
    """

    mean_abs: float | None = None
    max_abs: float | None = None
    kl_k3: float | None = None
    per_sample: bool = False

    def __post_init__(self) -> None:
        for name, bound in self.bounds.items():
            if isinstance(bound, bool) or not 0 <= bound < math.inf:
                raise ValueError(f"log-prob threshold {name} is {bound!r}, not a finite number of at least 0")
        if self.per_sample and self.mean_abs is None:
            raise ValueError("per_sample says how mean_abs is taken, and no threshold mean_abs is given")

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds that are set, by name of the figure."""
        mean = "mean_abs_per_sample" if self.per_sample else "mean_abs"
        named = {mean: self.mean_abs, "max_abs": self.max_abs, "kl_k3": self.kl_k3}
        return {name: bound for name, bound in named.items() if bound is not None}


@dataclasses.dataclass(frozen=True, slots=True)
class LogprobReport:
    """What `compare_logprobs` found. Every figure is taken over the tokens that the mask keeps, in float64, in nats.

    With d = log p_train − log p_rollout of a token, and d = 0 where both are −inf. The tokens were drawn from the rollout
    policy q; p is the trained one. All figures are NaN where no token is kept or a kept one is invalid.

    Attributes:
        samples, tokens: how many samples were given, and how many tokens the mask keeps.
        empty_samples: samples of which it keeps none.
        mean_abs: mean of abs(d) over all tokens.
        mean_abs_per_sample: mean over samples of each sample's mean of abs(d): the gate of slime
            (`train_rollout_logprob_abs_diff`), except that slime counts an empty sample as 0 and here it does not count.
        max_abs: largest abs(d); inf where just one side is −inf.
        max_at: the first token that has it, or the first invalid one; None without tokens.
        kl_k1: mean of −d, the estimate k1 of KL(q, p) in J. Schulman, "Approximating KL Divergence" (joschu.net, 2020):
            unbiased, may be negative; NaN if some tokens are −inf in train only and others in rollout only.
        kl_k3: mean of exp(d) − 1 − d, the estimate k3 of the same: unbiased, never negative. 0 means d = 0 everywhere.
        ppl_ratio: exp(mean of −d): perplexity of these tokens under the trainer divided by that under the sampler; 1 if equal.
        identical_bits: share of tokens with the same bits on both sides, 0 to 1; −0 and +0 differ, an invalid token never counts.
            Types that differ (where that was allowed) are widened to float64 first.
        dtype_train, dtype_rollout: element type of each side.
        invalid_train, invalid_rollout: tokens kept that are NaN or +inf. Any of them fails.
        invalid_masked: tokens under the mask that are NaN or +inf on a side: reported, not failed.
        first_invalid: the first token kept that is invalid.
        limits: what `ok` asks for.
    """

    samples: int
    tokens: int
    empty_samples: int
    mean_abs: float
    mean_abs_per_sample: float
    max_abs: float
    max_at: TokenPair | None
    kl_k1: float
    kl_k3: float
    ppl_ratio: float
    identical_bits: float
    dtype_train: str
    dtype_rollout: str
    invalid_train: int
    invalid_rollout: int
    invalid_masked: int
    first_invalid: TokenPair | None
    limits: Limits

    @property
    def ok(self) -> bool:
        """Whether tokens were compared, all are valid and within every bound of `limits`; without bounds, the same to the bit."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """Why `ok` is False, one line each."""
        if self.tokens == 0:
            return (f"no response tokens: the mask keeps none of {self.samples} samples",)
        found = []
        if self.first_invalid is not None:
            counts = f"{self.invalid_train} in train, {self.invalid_rollout} in rollout"
            found.append(f"NaN or +inf log-probs: {counts}; first at {self.first_invalid.format()}")
        for name, bound in self.limits.bounds.items():
            value = getattr(self, name)
            if not value <= bound:  # a NaN is beyond every bound
                found.append(f"{name} is {value:.6g}, the threshold is {bound:.6g}")
        if not self.limits.bounds and self.identical_bits < 1.0:
            found.append(f"{self.identical_bits:.4%} of the tokens have the same bits on both sides, 100% are asked for")
        return tuple(found)

    def format(self) -> str:
        """The failures, then the figures, the worst token and what to do next."""
        lines = [f"log-probs differ: {line}" for line in self.failures] or ["log-probs agree"]
        dtypes = self.dtype_train if self.dtype_train == self.dtype_rollout else f"{self.dtype_train} and {self.dtype_rollout}"
        empty = f" ({self.empty_samples} without tokens)" if self.empty_samples else ""
        lines.append(f"    compared: {self.tokens} response tokens of {self.samples} samples{empty}, {dtypes}")
        if self.invalid_masked:
            lines.append(f"    under the mask: {self.invalid_masked} tokens are NaN or +inf")
        if self.max_at is not None:
            lines.append(f"    largest difference {self.max_abs:.6g} at {self.max_at.format()}")
            lines.append(f"    mean_abs {self.mean_abs:.6g}, mean_abs_per_sample {self.mean_abs_per_sample:.6g}")
            lines.append(f"    kl_k1 {self.kl_k1:.6g}, kl_k3 {self.kl_k3:.6g}, ppl_ratio {self.ppl_ratio:.9g}")
            lines.append(f"    identical bits: {self.identical_bits:.4%}")
        if not self.ok:
            lines.append(f"    next: {_NEXT if self.tokens else 'give a mask that keeps the response tokens'}")
        return "\n".join(lines)


def compare_logprobs(
    train: object,
    rollout: object,
    *,
    mask: object = None,
    limits: Limits | None = None,
    allow_dtype_mismatch: bool = False,
) -> LogprobReport:
    """Compare the log-probs of the same tokens from the trainer and from the sampler.

    Args:
        train, rollout: log-probs in nats; one sample `[tokens]`, a batch `[samples, tokens]`, or a list of samples of any
            lengths. numpy arrays, torch tensors on any device, or lists of floats (which are float64); bfloat16 to float64.
        mask: True or 1 for each response token; of the same lengths. None keeps all.
        limits: what `ok` of the report asks for; None: the same bits everywhere.
        allow_dtype_mismatch: take sides of different element types, as when the sampler's log-probs came as JSON numbers.

    Raises:
        ValueError: lengths, element types or the mask do not fit; the message says where and how.
    """
    left, right = read_logprobs(train, "train"), read_logprobs(rollout, "rollout")
    check_lengths(left.lengths, right.lengths, "train", "rollout")
    kept = read_mask(mask, left.lengths)
    if left.dtype != right.dtype and not allow_dtype_mismatch:
        raise ValueError(
            f"train is {left.dtype}, rollout is {right.dtype}: take both as the engines used them, without a cast; "
            "allow_dtype_mismatch=True compares them as they are"
        )
    return _report(left, right, kept, limits or Limits())


def assert_logprobs_aligned(
    train: object,
    rollout: object,
    *,
    mean_abs: float | None = None,
    max_abs: float | None = None,
    kl_k3: float | None = None,
    per_sample: bool = False,
    mask: object = None,
    allow_dtype_mismatch: bool = False,
) -> LogprobReport:
    """Fail unless trainer and sampler agree within every threshold given; see `Limits` and `compare_logprobs`.

    Bit-exact engines: `max_abs=0`. Returns the report.

    Raises:
        AssertionError: a threshold is passed, a kept token is NaN or +inf, or no token is kept; the text is the report's.
        ValueError: no threshold is given, or the arguments do not fit.
    """
    limits = Limits(mean_abs, max_abs, kl_k3, per_sample)
    if not limits.bounds:
        raise ValueError("assert_logprobs_aligned: give at least one of mean_abs, max_abs, kl_k3 (max_abs=0 for the same values)")
    report = compare_logprobs(train, rollout, mask=mask, limits=limits, allow_dtype_mismatch=allow_dtype_mismatch)
    if not report.ok:
        raise AssertionError(report.format())
    return report


def _report(left: Side, right: Side, kept: list[Bool], limits: Limits) -> LogprobReport:
    lengths = left.lengths
    train, rollout = left.tokens, right.tokens
    mask = np.concatenate([np.empty(0, dtype=np.bool_), *kept])
    bad_train, bad_rollout = _invalid(train), _invalid(rollout)
    bad = bad_train | bad_rollout
    gap = _differences(train, rollout, bad)
    size = np.abs(gap)
    means = [s[m].mean() for s, m in zip(_split(size, lengths), kept, strict=True) if m.any()]
    invalid, at = np.flatnonzero(mask & bad), np.flatnonzero(mask)
    worst = int(at[np.argmax(size[at])]) if at.size else None  # argmax stops at the first NaN
    same = (train.view(np.uint64) == rollout.view(np.uint64)) & ~bad
    k1 = 0.0 - _mean(gap[mask])
    with np.errstate(over="ignore"):
        ppl_ratio = float(np.exp(k1))
    return LogprobReport(
        samples=len(lengths),
        tokens=at.size,
        empty_samples=len(lengths) - len(means),
        mean_abs=_mean(size[mask]),
        mean_abs_per_sample=_mean(np.array(means)),
        max_abs=math.nan if worst is None else float(size[worst]),
        max_at=None if worst is None else _pair(worst, lengths, train, rollout),
        kl_k1=k1,
        kl_k3=_mean(_k3_terms(gap[mask])),
        ppl_ratio=ppl_ratio,
        identical_bits=_mean(same[mask].astype(np.float64)),
        dtype_train=left.dtype,
        dtype_rollout=right.dtype,
        invalid_train=int((bad_train & mask).sum()),
        invalid_rollout=int((bad_rollout & mask).sum()),
        invalid_masked=int((bad & ~mask).sum()),
        first_invalid=_pair(int(invalid[0]), lengths, train, rollout) if invalid.size else None,
        limits=limits,
    )


def _invalid(values: Float64) -> Bool:
    return np.isnan(values) | np.isposinf(values)


def _differences(train: Float64, rollout: Float64, bad: Bool) -> Float64:
    """train − rollout; 0 where both are −inf, NaN where a side is invalid."""
    with np.errstate(invalid="ignore"):
        gap = np.where(train == rollout, 0.0, train - rollout)
    return np.where(bad, np.nan, gap)


def _k3_terms(gap: Float64) -> Float64:
    """exp(d) − 1 − d; by its series where d is small and the subtraction would leave rounding only; inf where d is infinite."""
    small = np.abs(gap) < 1e-4
    d = np.where(small, gap, 0.0)
    series = d * d / 2 * (1 + d / 3 * (1 + d / 4))
    with np.errstate(over="ignore", invalid="ignore"):
        direct = np.where(np.isinf(gap), np.inf, np.expm1(gap) - gap)
    return np.where(small, series, direct)


def _mean(values: Float64) -> float:
    with np.errstate(invalid="ignore"):
        return float(values.mean()) if values.size else math.nan


def _split(values: Float64, lengths: list[int]) -> list[Float64]:
    return np.split(values, np.cumsum(lengths)[:-1]) if lengths else []


def _pair(index: int, lengths: list[int], train: Float64, rollout: Float64) -> TokenPair:
    ends = np.cumsum(lengths)
    sample = int(np.searchsorted(ends, index, side="right"))
    token = index - int(ends[sample]) + lengths[sample]
    return TokenPair(sample, token, float(train[index]), float(rollout[index]))
