"""Intervals and comparisons: worked out by hand, and their coverage on simulated evaluations."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit
from scipy.stats import betabinom, ttest_rel
from scipy.stats import t as student

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.evals.measures import (
    ProblemResult,
    measured,
    over_benchmarks,
    paired,
    t_interval,
)
from mugrpo.rollouts.evaluation import avg_at, interval, pass_at
from tests.cases import table

# Simulated evaluations. The probability of a right response is drawn for each problem from
# Beta(a, b).
DIFFICULTIES = {
    "most all or nothing, Beta(0.3, 0.3)": (0.3, 0.3),
    "hard, Beta(0.2, 1.8)": (0.2, 1.8),
    "uniform, Beta(1, 1)": (1.0, 1.0),
    "easy, Beta(9.7, 0.3)": (9.7, 0.3),
}
CELLS = [*itertools.product(DIFFICULTIES, (30, 100, 500), (1, 4, 32))]  # problems, responses
SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=20)
# Cells outside of 93 to 97 %, with the coverage that 100,000 repetitions give.
OUTSIDE = {
    ("hard, Beta(0.2, 1.8)", 30, 1): 97.5,
    ("easy, Beta(9.7, 0.3)", 30, 4): 97.0,
    ("easy, Beta(9.7, 0.3)", 30, 32): 92.9,
    ("hard, Beta(0.2, 1.8)", 30, 32): 93.2,
}


def draw_right(rng, difficulties: str, repetitions: int, problems: int, k: int):
    """Return how many of k responses to each problem are right."""
    return rng.binomial(k, rng.beta(*DIFFICULTIES[difficulties], (repetitions, problems)))


def truth(difficulties: str) -> float:
    a, b = DIFFICULTIES[difficulties]
    return a / (a + b)


def coverage(low_R, high_R, true: float) -> float:
    """Return the share of the intervals that hold the true value, in percent."""
    return 100 * float(np.mean((low_R <= true) & (true <= high_R)))


@pytest.mark.long
@table("cell", CELLS)
def test_the_interval_covers_the_mean_of_all_problems(cell):
    difficulties, problems, k = cell
    repetitions = 4000 if problems == 500 else 20_000
    right = draw_right(np.random.default_rng(7), difficulties, repetitions, problems, k)
    percent = coverage(*interval(right / k, k), truth(difficulties))
    if cell in OUTSIDE:
        assert percent == pytest.approx(OUTSIDE[cell], abs=1.5)
    else:
        assert 93 <= percent <= 97


@table("difficulties", ["most all or nothing, Beta(0.3, 0.3)", "uniform, Beta(1, 1)"])
@table("k", [4, 16, 32])
def test_it_covers_pass_at_k(difficulties, k):
    """Of 32 responses. The truth is that of k responses to a new problem: a beta-binomial tail."""
    right = draw_right(np.random.default_rng(3), difficulties, 4000, 100, 32)
    of_count = pass_at(range(33), [32] * 33, k)
    true = betabinom.sf(0, k, *DIFFICULTIES[difficulties])
    assert 93 <= coverage(*interval(of_count[right], 32), true) <= 97


def test_extreme_difficulties_are_covered_less():
    rng = np.random.default_rng(5)
    percents = []
    for problems in (30, 100):
        right = rng.binomial(32, rng.beta(2.91, 0.09, (4000, problems)))
        percents.append(coverage(*interval(right / 32, 32), 0.97))
    assert percents == pytest.approx([88, 93], abs=1.5)


def test_wilson_and_t_by_hand():
    """Two problems: t has one degree of freedom, and z = 12.706, z^2 = 161.4.

    Values 1 and 0: p = 1/2 and SE^2 = 1/4 give n = 1, raised to 2. The half width is
    12.706 / (1 + 80.72) sqrt(1/8 + 161.4 / 16) = .15548 x 3.1962 = .4969.
    """
    assert interval([1.0, 0.0], 1) == pytest.approx((0.0031, 0.9969), abs=5e-5)
    # 1, 2, 3: mean 2, SE = 1 / sqrt 3, t_2 = 4.3027.
    half = 4.3027 / 3**0.5
    assert t_interval([1, 2, 3]) == pytest.approx((2 - half, 2 + half), abs=1e-4)


def test_samples_that_always_agree_count_as_one_and_those_that_never_do_as_all():
    assert interval([1.0] * 8 + [0.0] * 2, 4) == interval([1.0] * 8 + [0.0] * 2, 1)
    half = interval([0.5] * 10, 4)
    z2, n = 2.2622**2, 40  # t with 9 degrees of freedom
    width = np.sqrt(z2) / (1 + z2 / n) * np.sqrt(0.25 / n + z2 / (4 * n * n))
    assert half == pytest.approx((0.5 - width, 0.5 + width), abs=1e-4)


@given(SHARES, st.integers(1, 64), st.randoms())
def test_ends_are_shares_around_the_mean_in_any_order(values, samples, random):
    low, high = interval(values, samples)
    assert 0 <= low <= np.mean(values) <= high <= 1 and low < high
    random.shuffle(values)
    assert interval(values, samples) == pytest.approx((low, high), abs=1e-9)
    if len(values) == 1:
        assert (low, high) == (0, 1)


def test_paired_is_scipys_paired_t_test_and_leaves_unknown_values_out():
    rng = np.random.default_rng(0)
    a, b = rng.random(40), rng.random(40)
    theirs = ttest_rel(a, b)
    ours = paired(a, b)
    assert ours.p_value == pytest.approx(theirs.pvalue)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval()))
    nan = float("nan")
    assert paired([1, 0.5, nan, 0], [0, 0.25, 1, nan]) == paired([1, 0.5], [0, 0.25])
    with pytest.raises(UsageError, match="no problem has a value in both"):
        paired([1, nan], [nan, 1])


def test_equal_differences_do_not_give_certainty():
    """500 problems without any difference: q = 1 - .025^(1/500) = .00735."""
    same = paired([1.0] * 500, [1.0] * 500)
    assert (same.low, same.value, same.high) == pytest.approx((-0.00735, 0, 0.00735), abs=1e-5)
    assert same.p_value == 1
    # Three problems, all better by 1: q = 1 - .025^(1/3) = .7076, and p = 2 / 2^3.
    better = paired([1.0] * 3, [0.0] * 3)
    assert (better.low, better.high) == pytest.approx((1 - 2 * 0.7076, 1), abs=1e-4)
    assert better.p_value == 0.25


@pytest.mark.long
@table("difficulties", DIFFICULTIES)
@table("problems", [30, 200])
@table("k", [1, 32])
@table("gain", [0.0, 0.7])
def test_paired_intervals_cover_the_difference(difficulties, problems, k, gain):
    """Both models share a problem's difficulty; the second gains 0.7 in logits, +- 0.5.

    Without a gain, coverage is 100 % less the errors of the first kind: 3 to 7 %.
    """
    rng = np.random.default_rng(11)
    base = np.clip(rng.beta(*DIFFICULTIES[difficulties], (2000, problems)), 1e-12, 1 - 1e-12)
    noise = 0.5 if gain else 0.0
    ways = [expit(logit(base) + g + noise * rng.standard_normal(base.shape)) for g in (gain, 0)]
    true = np.mean(ways[0] - ways[1]) if gain else 0.0
    a, b = (rng.binomial(k, way) / k for way in ways)
    found = [paired(*pair) for pair in zip(a, b, strict=True)]
    percent = coverage(*np.array([(d.low, d.high) for d in found]).T, true)
    hard_to_tell = problems == 30 and difficulties.startswith(("easy", "hard"))
    assert (90 if hard_to_tell else 93) <= percent <= (100 if hard_to_tell else 97)
    if gain == 0.0:
        assert all((d.p_value < 0.05) == (not d.low <= 0 <= d.high) for d in found)


def test_pairing_narrows_the_interval_if_difficulties_are_shared():
    rng = np.random.default_rng(1)
    share = rng.beta(0.3, 0.3, 200)
    a, b = rng.binomial(8, share) / 8, rng.binomial(8, share) / 8
    together, apart = paired(a, b), paired(a, rng.permutation(b))
    assert together.high - together.low < (apart.high - apart.low) / 2


def test_the_mean_over_benchmarks_by_hand():
    """Differences 0, 1 and 0, 0, 1, 1 less one half: means 1/2 and 0.

    SE^2 is (1/2) / 2 = 1/4 and (1/3) / 4 = 1/12; of the mean, (1/4 + 1/12) / 4 = 1/12. Degrees of
    freedom: (1/16 + 1/48)^2 / ((1/16)^2 / 1 + (1/48)^2 / 3) = (1/144) / (7/1728) = 1.714.
    """
    found = over_benchmarks([([0, 1], [0, 0]), ([0, 0, 1, 1], [0.5] * 4)])
    assert found.value == 0.25 and found.problems == 6
    assert found.p_value == pytest.approx(2 * student.sf(0.25 * 12**0.5, 12 / 7))


def test_the_mean_over_benchmarks_covers():
    """30 hard problems with 32 responses, 200 easy ones with one; no difference in either."""
    rng = np.random.default_rng(2)
    inside = 0
    for _ in range(1000):
        pairs = []
        for difficulties, problems, k in ((list(DIFFICULTIES)[1], 30, 32), ("flat", 200, 1)):
            share = rng.beta(*DIFFICULTIES.get(difficulties, (1, 1)), problems)
            pairs.append((rng.binomial(k, share) / k, rng.binomial(k, share) / k))
        found = over_benchmarks(pairs)
        inside += found.low <= 0 <= found.high
    assert 930 <= inside <= 970


@table("n", [1, 4, 7])
def test_every_subset_enumerated(n):
    for right in range(n + 1):
        outcomes = [True] * right + [False] * (n - right)
        for k in range(1, n + 1):
            subsets = [sum(subset) for subset in itertools.combinations(outcomes, k)]
            share = sum(count > 0 for count in subsets) / len(subsets)
            assert pass_at([right], [n], k) == [share]
    # 1 of 4,096 right and half of them drawn: exactly 1/2, and the same for one wrong
    assert pass_at([1, 4095], [4096] * 2, 2048).tolist() == [0.5, 1.0]


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_more_tries_never_hurt(pair):
    n, right = pair
    passes = [pass_at([right], [n], k)[0] for k in range(1, n + 1)]
    assert passes == sorted(passes) and passes[0] >= 0 and passes[-1] <= 1
    assert passes[0] == avg_at([right], [n])[0]


def result(right=0, judged=4, samples=4, truncated=0, no_answer=0, tokens=40):
    return ProblemResult("p", right, judged, samples, truncated, no_answer, tokens)


def test_measures_by_hand():
    """Three problems, four responses. The judge failed once on the second, always on the third."""
    results = [
        result(right=3, truncated=1, tokens=100),
        result(right=1, judged=3, no_answer=2, tokens=60),
        result(judged=0, tokens=20),
    ]
    found = measured(results)
    shown = {name: (m.value, m.problems) for name, m in found.items()}
    assert shown == {
        "avg@4": (pytest.approx((3 / 4 + 1 / 3) / 2), 2),
        "pass@1": (pytest.approx((3 / 4 + 1 / 3) / 2), 2),
        "pass@2": (pytest.approx((1 + 2 / 3) / 2), 2),
        "pass@4": (1, 1),
        "truncated": (pytest.approx(1 / 12), 3),
        "no_answer": (pytest.approx(2 / 12), 3),
        "mean_length": (15, 3),
    }
    assert (found["pass@4"].low, found["pass@4"].high) == (0, 1)
    lengths = found["mean_length"]
    assert (lengths.low, lengths.high) == t_interval([25, 15, 5])
    assert (found["avg@4"].low, found["avg@4"].high) == interval([3 / 4, 1 / 3], 4)


def test_what_has_no_interval_is_left_out_and_problems_with_few_verdicts_are_unknown():
    assert "mean_length" not in measured([result()])
    unjudged = measured([result(judged=0)] * 2)
    assert list(unjudged) == ["truncated", "no_answer", "mean_length"]
    assert np.isnan(avg_at([0, 1], [0, 1])).tolist() == [True, False]
    assert np.isnan(pass_at([2, 2], [3, 4], 4)).tolist() == [True, False]


@st.composite
def _results(draw):
    n = draw(st.integers(1, 9))

    def one(_):
        judged = draw(st.integers(0, n))
        right, cut, empty = (draw(st.integers(0, most)) for most in (judged, n, n))
        return result(right, judged, n, cut, empty, draw(st.integers(0, 999)))

    return [one(_) for _ in range(draw(st.integers(1, 6)))]


@given(_results(), st.randoms())
def test_every_measure_lies_in_its_interval_whatever_the_order(results, random):
    found = measured(results)
    for name, each in found.items():
        assert each.low <= each.value <= each.high and math.isfinite(each.high - each.low)
        assert name == "mean_length" or (each.low >= 0 and each.high <= 1)
    random.shuffle(results)
    again = measured(results)
    assert list(again) == list(found)
    for name, each in found.items():
        one, other = again[name], each
        assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high))
