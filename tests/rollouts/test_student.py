"""Student's t distribution against SciPy's, and against closed forms."""

import math

import pytest
from scipy.stats import t as student

from mugrpo.rollouts.student import cdf, quantile

DF = (1, 2, 3.7, 9, 29.5, 255, 399, 5000)


@pytest.mark.parametrize("df", DF)
def test_cdf_is_scipys_far_into_the_tails(df):
    for t in (-40.0, -6.2, -2.1, -0.3, -1e-4, 0.0, 0.7, 3.3, 12.0):
        assert cdf(t, df) == pytest.approx(student.cdf(t, df), rel=1e-11)


@pytest.mark.parametrize("df", DF)
def test_quantile_is_scipys(df):
    for p in (0.5, 0.6, 0.95, 0.975, 0.9995):
        assert quantile(p, df) == pytest.approx(student.ppf(p, df), rel=1e-11, abs=1e-12)


def test_closed_forms():
    """With one degree of freedom 1/2 + atan(t)/pi; with two t / sqrt(2 (1 - c^2)), c = 2p - 1."""
    assert cdf(1.0, 1) == pytest.approx(0.75, rel=1e-14)
    assert quantile(0.975, 2) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)), rel=1e-14)
    assert cdf(-math.inf, 3) == 0 and cdf(math.inf, 3) == 1
