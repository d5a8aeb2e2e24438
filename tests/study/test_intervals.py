"""Intervals by hand, and the quantiles by integration of the density."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mugrpo.study.intervals import Estimate, estimate, geometric, t_quantile


def test_an_estimate_by_hand():
    """1, 2, 6: mean 3, standard deviation sqrt((4 + 1 + 9) / 2) = sqrt 7, t(2) = 4.303."""
    found = estimate([1.0, None, 2.0, 6.0])
    assert found is not None and (found.mean, found.count) == (3.0, 3)
    assert found.half_width == pytest.approx(4.303 * math.sqrt(7 / 3))


def test_a_geometric_mean_by_hand():
    """1 and 100: the logarithms have mean log 10 and standard deviation sqrt 2 log 10."""
    found = geometric([1.0, None, 100.0, 0.0])
    assert found is not None
    factor = 10**12.706
    assert found == (pytest.approx(10), pytest.approx(10 / factor), pytest.approx(10 * factor), 2)
    assert geometric([None, 0.0]) is None
    huge = geometric([1e300, 1e-300])
    assert huge is not None and math.isfinite(huge[2])


def test_one_value_has_no_interval_and_none_no_estimate():
    assert estimate([None, 0.5]) == Estimate(0.5, None, 1)
    assert estimate([None]) is None and estimate([]) is None


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 13, 14, 25, 30])
def test_the_quantile_leaves_a_fortieth_on_its_right(freedom):
    """x = sqrt(n) tan(u) makes the t density the finite cos(u)^(n - 1), normalized over u."""
    angles = np.linspace(-math.pi / 2, math.pi / 2, 2_000_001)
    density = np.cos(angles) ** (freedom - 1)
    beyond = angles > math.atan(t_quantile(freedom) / math.sqrt(freedom))
    assert density[beyond].sum() / density.sum() == pytest.approx(
        0.025, abs=4e-5
    )  # the table has three decimals


def test_many_seeds_have_nearly_the_normal_quantile():
    assert t_quantile(30) > t_quantile(31) > t_quantile(1000) > 1.960
    assert t_quantile(1000) == pytest.approx(1.960, abs=0.003)


def test_five_seeds_cover_the_mean_19_times_in_20():
    rng = np.random.default_rng(0)
    draws = rng.normal(3.0, 2.0, (20_000, 5)).tolist()
    found = [one for draw in draws if (one := estimate(draw)) is not None]
    covered = [abs(one.mean - 3.0) <= (one.half_width or 0.0) for one in found]
    # 3 x sqrt(0.95 x 0.05 / 20000) = 0.0046
    assert sum(covered) / len(covered) == pytest.approx(0.95, abs=0.0046)
