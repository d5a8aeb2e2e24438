"""The metrics of held-out problems by hand, and Student's t distribution against SciPy's."""

import math

import pytest
from scipy.stats import t as student

from mugrpo.rollouts.evaluation import accuracy, accuracy_by_source, interval
from mugrpo.rollouts.student import cdf, quantile

RIGHT = {"status": "right", "reward": 1.0}
WRONG = {"status": "wrong", "reward": 0.0}
UNKNOWN = {"status": "error", "reward": None}


def test_accuracy_is_the_mean_over_problems_without_samples_that_have_no_verdict():
    """Of two samples each: one right and one unknown, two wrong, two unknown."""
    verdicts = [RIGHT, UNKNOWN, WRONG, WRONG, UNKNOWN, UNKNOWN]
    metrics = accuracy(verdicts, 2, [True] * 3)
    assert (metrics["accuracy_low"], metrics["accuracy_high"]) == interval([1, 0], 2)
    assert metrics["accuracy"] == 1 / 2 and metrics["reward"] == pytest.approx(1 / 3)
    assert metrics["pass@2"] == 0 and metrics["problems"] == 3 and metrics["status/error"] == 3
    # means 1 and 0: 1/3 of all three, with t(0.975, 1) = 12.706 times 1/2
    assert metrics["reward_high"] == pytest.approx(1 / 3 + 12.706205 / 2)
    none = accuracy([UNKNOWN] * 2, 1, [True] * 2)
    for name in ("accuracy", "accuracy_low", "accuracy_high", "reward", "pass@1"):
        assert none[name] is None
    metrics = accuracy([RIGHT, RIGHT, RIGHT, WRONG, WRONG, WRONG], 2, [True] * 3)
    assert (metrics["accuracy_low"], metrics["accuracy_high"]) == interval([1, 0.5, 0], 2)
    assert metrics["accuracy"] == metrics["reward"] == 1 / 2 and metrics["pass@2"] == 2 / 3


def test_rewards_without_a_verdict_have_a_mean_and_no_accuracy():
    """Two problems without a verdict (rewards 9 and 0, as it was cut; 3 and 1), one with."""
    verdicts = [{"status": "graded", "reward": 9.0}, {"status": "truncated", "reward": 0.0}]
    verdicts += [{"status": "graded", "reward": reward} for reward in (3.0, 1.0)]
    alone = accuracy(verdicts, 2, [False] * 2)
    assert (alone["accuracy"], alone["accuracy_high"], alone["pass@2"]) == (None, None, None)
    # means 4.5 and 2: their standard deviation is 2.5 / sqrt(2), so their error is 1.25
    assert alone["reward"] == 3.25 and alone["status/graded"] == 3
    assert alone["reward_low"] == pytest.approx(3.25 - 12.706205 * 1.25)
    beside = accuracy([*verdicts, RIGHT, WRONG], 2, [False, False, True])
    assert beside["accuracy"] == 0.5 and beside["reward"] == pytest.approx(14 / 6)


def test_accuracy_of_each_source():
    """Sources a (two of four right) and b (none of two), two samples each; c is not judged."""
    verdicts = [RIGHT, WRONG, WRONG, WRONG, RIGHT, WRONG, UNKNOWN, UNKNOWN]
    of_sources = {
        "a": (0.5, *interval([0.5, 0.5], 2)),
        "b": (0.0, *interval([0.0], 2)),
        "c": (None, None, None),
    }
    assert accuracy_by_source(verdicts, 2, [True] * 4, ["a", "b", "a", "c"]) == {
        f"{name}/{source}": value
        for source, values in of_sources.items()
        for name, value in zip(("accuracy", "accuracy_low", "accuracy_high"), values, strict=True)
    }
    assert accuracy_by_source(verdicts, 2, [True] * 4, [None] * 4) == {}


@pytest.mark.parametrize("df", [1, 2, 3.7, 9, 29.5, 255, 399, 5000])
def test_cdf_and_quantile_are_scipys_far_into_the_tails(df):
    for t in (-40.0, -6.2, -2.1, -0.3, -1e-4, 0.0, 0.7, 3.3, 12.0):
        assert cdf(t, df) == pytest.approx(student.cdf(t, df), rel=1e-11)
    for p in (0.5, 0.6, 0.95, 0.975, 0.9995):
        assert quantile(p, df) == pytest.approx(student.ppf(p, df), rel=1e-11, abs=1e-12)


def test_closed_forms():
    """With one degree of freedom 1/2 + atan(t)/pi; with two t / sqrt(2 (1 - c^2)), c = 2p - 1."""
    assert cdf(1.0, 1) == pytest.approx(0.75, rel=1e-14)
    assert quantile(0.975, 2) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)), rel=1e-14)
    assert cdf(-math.inf, 3) == 0 and cdf(math.inf, 3) == 1
