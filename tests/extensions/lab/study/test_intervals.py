"""Intervals by hand, and the quantiles by integration of the density."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from mugrpo.extensions.lab.study.intervals import (
    Estimate,
    difference_p,
    equivalence,
    estimate,
    geometric,
)
from mugrpo.rollouts.student import holm
from tests.cases import table


def test_an_estimate_and_a_geometric_mean_by_hand():
    """1, 2, 6: mean 3, standard deviation sqrt((4 + 1 + 9) / 2) = sqrt 7, t(2) = 4.303."""
    found = estimate([1.0, None, 2.0, 6.0])
    assert found is not None and (found.mean, found.count) == (3.0, 3)
    assert found.half_width == pytest.approx(4.303 * math.sqrt(7 / 3), rel=1e-3)
    assert estimate([None, 0.5]) == Estimate(0.5, None, 1)  # one value has no interval
    assert estimate([None]) is None and estimate([]) is None
    # 1 and 100: the logarithms have mean log 10 and standard deviation sqrt 2 log 10.
    found = geometric([1.0, None, 100.0, 0.0])
    assert found is not None
    factor = 10**12.7062
    expected = pytest.approx((10, 10 / factor, 10 * factor, 2), rel=1e-4)
    assert found == expected
    assert geometric([None, 0.0]) is None
    huge = geometric([1e300, 1e-300])
    assert huge is not None and math.isfinite(huge[2])


def test_equivalence_by_hand():
    """-.01, 0, .01: standard error .01 / sqrt 3, so t = .02 / it = sqrt 12 with 2 degrees.

    There P(T < -t) = 1/2 - t / (2 sqrt(2 + t^2)).
    """
    p = equivalence([-0.01, None, 0.0, 0.01], 0.02)
    assert p == pytest.approx(0.5 - math.sqrt(12) / (2 * math.sqrt(14)))
    found = equivalence([0.03, 0.04, 0.05], 0.02)
    assert found == pytest.approx(0.5 + math.sqrt(12) / (2 * math.sqrt(14)))
    assert equivalence([0.01], 0.02) is None
    assert equivalence([0.01, 0.01], 0.02) == 0 and equivalence([0.02, 0.02], 0.02) == 1


def test_a_paired_test_is_scipys():
    differences = np.random.default_rng(1).normal(0.01, 0.02, 10)
    expected = ttest_1samp(differences, 0.0).pvalue
    assert difference_p([None, *differences.tolist()]) == pytest.approx(expected)
    assert difference_p([0.1, 0.1]) == 0 and difference_p([0.0, 0.0]) == 1
    assert difference_p([0.1]) is None


def test_holm_by_hand():
    """The smallest of four is multiplied by 4, the next by 3, ...; none falls below one before."""
    assert holm([0.03, None, 0.01, 0.04, 0.005]) == [0.06, None, 0.03, 0.06, 0.02]
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.6, 0.5]) == [1.0, 1.0] and holm([]) == []


@table("shift", [-0.015, 0.0, 0.01, 0.03])
def test_equivalence_is_the_larger_of_two_one_sided_t_tests(shift):
    differences = np.random.default_rng(1).normal(shift, 0.01, 10)
    above = ttest_1samp(differences, -0.02, alternative="greater").pvalue
    below = ttest_1samp(differences, 0.02, alternative="less").pvalue
    assert equivalence(differences.tolist(), 0.02) == pytest.approx(max(above, below))


@pytest.mark.long
def test_five_seeds_cover_the_mean_19_times_in_20():
    rng = np.random.default_rng(0)
    draws = rng.normal(3.0, 2.0, (20_000, 5)).tolist()
    found = [one for draw in draws if (one := estimate(draw)) is not None]
    covered = [abs(one.mean - 3.0) <= (one.half_width or 0.0) for one in found]
    # 3 x sqrt(0.95 x 0.05 / 20000) = 0.0046
    assert sum(covered) / len(covered) == pytest.approx(0.95, abs=0.0046)
