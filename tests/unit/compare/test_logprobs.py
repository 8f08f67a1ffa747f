"""Log-probs of trainer and sampler: figures from closed forms and hand counts, and no way past a NaN or an empty mask."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specalign.compare.logprobs import Limits, LogprobReport, assert_logprobs_aligned, compare_logprobs

INF, NAN = math.inf, math.nan
ROUNDED = {"rel": 1e-12, "abs": 1e-15}
LOGPROB = st.floats(-40, 0)


# figures


@pytest.mark.parametrize(
    ("rollout_counts", "train_counts"),
    [((5, 3, 2), (2, 3, 5)), ((1, 1, 1, 1), (1, 2, 3, 4)), ((7, 1), (1, 7)), ((4, 4), (4, 4)), ((999, 1), (500, 500))],
)
def test_the_estimates_are_the_exact_kl_of_a_categorical(rollout_counts: tuple[int, ...], train_counts: tuple[int, ...]) -> None:
    q = [Fraction(count, sum(rollout_counts)) for count in rollout_counts]
    p = [Fraction(count, sum(train_counts)) for count in train_counts]
    kl = math.fsum(float(a) * math.log(a / b) for a, b in zip(q, p, strict=True))
    # Each token occurs as often as q says, so that a mean over tokens is an expectation under q; and E_q[p/q] = 1 makes k3 exact.
    drawn = [token for token, count in enumerate(rollout_counts) for _ in range(count)]
    report = compare_logprobs([math.log(p[token]) for token in drawn], [math.log(q[token]) for token in drawn])
    assert report.kl_k1 == pytest.approx(kl, **ROUNDED)
    assert report.kl_k3 == pytest.approx(kl, **ROUNDED)
    assert report.ppl_ratio == pytest.approx(math.exp(kl), **ROUNDED)


@pytest.mark.parametrize("shift", [0.1, -0.5, 1.0])
def test_the_estimates_approach_the_kl_of_two_gaussians(shift: float) -> None:
    count = 20_000
    x = np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
    report = compare_logprobs(-((x - shift) ** 2) / 2, -(x**2) / 2)  # the constants cancel
    assert report.kl_k1 == pytest.approx(shift**2 / 2, rel=1e-3)
    assert report.kl_k3 == pytest.approx(shift**2 / 2, rel=2e-3)


def test_kl_looks_from_the_sampler_to_the_trainer() -> None:
    # The trainer finds each sampled token less likely: KL(rollout, train) is positive, the perplexity under the trainer higher.
    report = compare_logprobs([-2.0, -2.0], [-1.0, -1.0])
    assert report.kl_k1 == 1.0
    assert report.kl_k3 == pytest.approx(math.exp(-1) - 1 + 1)
    assert report.ppl_ratio == pytest.approx(math.e)


@given(gap=st.one_of(st.floats(-30, 30), st.floats(-1e-3, 1e-3), st.floats(-1e-12, 1e-12)))
def test_k3_of_one_token_is_right_to_ten_digits_and_never_negative(gap: float) -> None:
    with localcontext(prec=120):  # d as small as 1e-30 leaves 60 digits after the subtractions
        d = Decimal(gap)
        expected = float(d.exp() - 1 - d) if abs(gap) > 1e-30 else gap * gap / 2
    report = compare_logprobs([gap], [0.0])
    assert report.kl_k3 == pytest.approx(expected, rel=1e-10, abs=1e-300)
    assert report.kl_k3 >= 0


def test_the_means_are_those_of_a_hand_count() -> None:
    train = [[-1.0, -2.0, -3.0, -4.0], [-1.0]]
    rollout = [[-1.5, -2.0, -3.0, -3.5], [-3.0]]
    report = compare_logprobs(train, rollout)
    assert (report.samples, report.tokens, report.empty_samples) == (2, 5, 0)
    assert report.mean_abs == 3.0 / 5
    assert report.mean_abs_per_sample == (0.25 + 2.0) / 2
    assert report.max_abs == 2.0
    assert report.max_at is not None
    assert (report.max_at.sample, report.max_at.token, report.max_at.train, report.max_at.rollout) == (1, 0, -1.0, -3.0)
    assert report.kl_k1 == (-0.5 + 0.5 - 2.0) / 5
    assert report.identical_bits == 2 / 5


def test_the_per_sample_mean_is_that_of_slime() -> None:
    rng = np.random.default_rng(1)
    lengths = [3, 17, 1, 8]
    train, rollout = ([torch.tensor(rng.uniform(-9, 0, n), dtype=torch.float32) for n in lengths] for _ in range(2))
    masks = [torch.tensor(rng.integers(0, 2, n)) for n in lengths]
    for mask in masks:
        mask[0] = 1
    # slime divides the sum over samples of these means by the number of samples
    gate = sum(((t - r).abs() * m).sum() / torch.clamp_min(m.sum(), 1) for t, r, m in zip(train, rollout, masks, strict=True))
    report = compare_logprobs(train, rollout, mask=masks)
    assert report.mean_abs_per_sample == pytest.approx(float(gate) / len(lengths), rel=1e-6)
    assert report.mean_abs != pytest.approx(report.mean_abs_per_sample, rel=1e-3)


def test_the_first_of_equal_differences_is_named() -> None:
    report = compare_logprobs([[-1.0], [-1.0, -2.0], [-2.0]], [[-1.0], [-1.0, -2.5], [-2.5]])
    assert report.max_at is not None
    assert (report.max_at.sample, report.max_at.token) == (1, 1)


@given(tokens=st.lists(LOGPROB, min_size=1, max_size=8))
def test_the_same_log_probs_agree_in_every_figure(tokens: list[float]) -> None:
    report = compare_logprobs(tokens, list(tokens))
    assert report.ok
    figures = (report.mean_abs, report.mean_abs_per_sample, report.max_abs, report.kl_k1, report.kl_k3)
    assert [math.copysign(1, figure) * (figure + 1) for figure in figures] == [1.0] * 5
    assert (report.ppl_ratio, report.identical_bits) == (1.0, 1.0)


@given(train=st.lists(LOGPROB, min_size=2, max_size=6), shift=st.floats(1e-6, 3))
def test_swapping_the_sides_changes_the_sign_of_k1_only(train: list[float], shift: float) -> None:
    rollout = [value - shift for value in train]
    there, back = compare_logprobs(train, rollout), compare_logprobs(rollout, train)
    assert (there.mean_abs, there.max_abs, there.identical_bits) == (back.mean_abs, back.max_abs, back.identical_bits)
    assert there.kl_k1 == -back.kl_k1 < 0
    assert there.ppl_ratio == pytest.approx(1 / back.ppl_ratio)


# masks


def test_tokens_under_the_mask_do_not_count() -> None:
    report = compare_logprobs([[-1.0, -9.0, -2.0]], [[-1.0, -1.0, -2.5]], mask=[[1, 0, 1]])
    assert (report.tokens, report.mean_abs, report.max_abs) == (2, 0.25, 0.5)
    assert report.max_at is not None
    assert report.max_at.token == 2  # counted in the whole response


def test_a_mask_that_keeps_a_hidden_difference_finds_it() -> None:
    train, rollout = [[-1.0, -2.0], [-3.0, -4.0]], [[-1.0, -2.0], [-3.0, -4.5]]
    assert compare_logprobs(train, rollout, mask=[[1, 1], [1, 0]]).ok
    assert not compare_logprobs(train, rollout, mask=[[1, 1], [0, 1]]).ok


def test_a_sample_without_tokens_does_not_dilute_the_mean() -> None:
    report = compare_logprobs([[-1.0], [-1.0], []], [[-2.0], [-1.0], []], mask=[[True], [False], []])
    assert (report.samples, report.empty_samples, report.mean_abs_per_sample) == (3, 2, 1.0)
    assert "2 without tokens" in report.format()


@pytest.mark.parametrize(
    ("logprobs", "mask"),
    [([], None), ([[]], None), ([[], []], None), (np.empty((0, 4)), None), ([-1.0], [0]), ([[-1.0], [-2.0]], [[0], [0]])],
)
def test_a_comparison_of_no_tokens_fails(logprobs: Any, mask: Any) -> None:
    report = compare_logprobs(logprobs, logprobs, mask=mask, limits=Limits(max_abs=1e9))
    assert not report.ok
    assert "no response tokens" in report.format()
    with pytest.raises(AssertionError, match="no response tokens"):
        assert_logprobs_aligned(logprobs, logprobs, mask=mask, max_abs=1e9)


# NaN and infinities


@pytest.mark.parametrize("side", ["train", "rollout", "both"])
@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_nan_or_plus_infinity_fails_with_its_place(side: str, bad: float) -> None:
    sides = {"train": [[-1.0, -1.0], [-1.0, -1.0]], "rollout": [[-1.0, -1.0], [-1.0, -1.0]]}
    for name in sides if side == "both" else [side]:
        sides[name][1][0] = bad
    report = compare_logprobs(**sides, limits=Limits(mean_abs=1e9, max_abs=1e9, kl_k3=1e9))
    assert not report.ok
    assert report.first_invalid is not None
    assert report.max_at is not None
    for place in (report.first_invalid, report.max_at):
        assert (place.sample, place.token) == (1, 0)
    assert (report.invalid_train, report.invalid_rollout) == (side != "rollout", side != "train")
    assert all(math.isnan(figure) for figure in (report.mean_abs, report.max_abs, report.kl_k1, report.kl_k3, report.ppl_ratio))
    assert report.identical_bits == 3 / 4
    counts = f"{int(side != 'rollout')} in train, {int(side != 'train')} in rollout"
    assert report.failures[0].startswith(f"NaN or +inf log-probs: {counts}; first at sample 1, token 0:")
    assert len(report.failures) == 4  # and NaN is beyond each of the three thresholds


def test_a_nan_under_the_mask_is_reported_and_does_not_fail() -> None:
    report = compare_logprobs([-1.0, NAN, -INF], [-1.0, NAN, INF], mask=[1, 0, 0])
    assert report.ok
    assert (report.invalid_masked, report.invalid_train, report.mean_abs) == (2, 0, 0.0)
    assert "under the mask: 2 tokens" in report.format()


def test_minus_infinity_on_both_sides_is_a_difference_of_zero() -> None:
    report = compare_logprobs([-INF, -1.0], [-INF, -1.0])
    assert report.ok
    assert (report.mean_abs, report.max_abs, report.kl_k3, report.identical_bits) == (0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(("train", "rollout", "k1"), [(-INF, -1.0, INF), (-1.0, -INF, -INF)])
def test_minus_infinity_on_one_side_is_an_infinite_difference(train: float, rollout: float, k1: float) -> None:
    report = compare_logprobs([-1.0, train], [-1.0, rollout], limits=Limits(mean_abs=1e300, max_abs=1e300, kl_k3=1e300))
    assert (report.mean_abs, report.max_abs, report.kl_k3, report.kl_k1) == (INF, INF, INF, k1)
    assert len(report.failures) == 3


def test_infinities_that_cancel_do_not_pass() -> None:
    report = compare_logprobs([-INF, -1.0], [-1.0, -INF], limits=Limits(kl_k3=1e300))
    assert math.isnan(report.kl_k1)
    assert not report.ok


# thresholds


def off_by_a_quarter(**limits: Any) -> LogprobReport:
    return compare_logprobs([[-1.0, -2.0], [-3.0]], [[-1.0, -2.0], [-3.5]], limits=Limits(**limits))


@pytest.mark.parametrize(
    ("name", "value"),
    [("mean_abs", 0.5 / 3), ("max_abs", 0.5), ("kl_k3", (math.exp(0.5) - 1.5) / 3)],
)
def test_a_threshold_holds_up_to_its_own_value(name: str, value: float) -> None:
    report = off_by_a_quarter(**{name: value * (1 + 1e-9)})
    assert report.ok, report.format()
    assert getattr(report, name) == pytest.approx(value)
    assert off_by_a_quarter(**{name: getattr(report, name)}).ok
    below = off_by_a_quarter(**{name: value * (1 - 1e-9)})
    assert not below.ok
    assert below.failures == (f"{name} is {value:.6g}, the threshold is {value:.6g}",)


def test_per_sample_bounds_the_mean_of_the_means() -> None:
    assert off_by_a_quarter(mean_abs=0.2).ok
    report = off_by_a_quarter(mean_abs=0.2, per_sample=True)
    assert report.failures == ("mean_abs_per_sample is 0.25, the threshold is 0.2",)


def test_without_thresholds_every_bit_must_be_the_same() -> None:
    report = compare_logprobs([-1.0, -2.0], [-1.0, -2.0 - 2.0**-40])
    assert report.failures == ("50.0000% of the tokens have the same bits on both sides, 100% are asked for",)


def test_the_assertion_says_what_where_by_how_much_and_what_next() -> None:
    with pytest.raises(AssertionError) as failed:
        assert_logprobs_aligned([[-1.0], [-1.0, -2.0]], [[-1.0], [-1.0, -2.5]], max_abs=0.01, mean_abs=1.0)
    assert str(failed.value).splitlines() == [
        "log-probs differ: max_abs is 0.5, the threshold is 0.01",
        "    compared: 3 response tokens of 2 samples, float64",
        "    largest difference 0.5 at sample 1, token 1: train -2.0, rollout -2.5",
        "    mean_abs 0.166667, mean_abs_per_sample 0.125",
        "    kl_k1 -0.166667, kl_k3 0.0495738, ppl_ratio 0.846481725",
        "    identical bits: 66.6667%",
        "    next: compare layerwise dumps of both sides for this sample up to this token: the first layer that differs is the cause",
    ]


def test_an_assertion_that_holds_returns_the_report() -> None:
    report = assert_logprobs_aligned([-1.0], [-1.0], max_abs=0)
    assert report.ok
    assert report.format().startswith("log-probs agree\n")
    assert "next" not in report.format()


def test_an_assertion_without_a_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one of mean_abs, max_abs, kl_k3"):
        assert_logprobs_aligned([-1.0], [-1.0])


@pytest.mark.parametrize("bound", [NAN, INF, -1e-9, True])
@pytest.mark.parametrize("name", ["mean_abs", "max_abs", "kl_k3"])
def test_a_threshold_that_bounds_nothing_is_refused(name: str, bound: float) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: bound})


def test_per_sample_without_a_mean_is_refused() -> None:
    with pytest.raises(ValueError, match="per_sample"):
        Limits(max_abs=1.0, per_sample=True)
