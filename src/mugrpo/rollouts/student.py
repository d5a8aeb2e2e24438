"""Student's t distribution, its quantiles, and p-values of several tests.

Here rather than from SciPy, which takes 143 MB for these two functions.
"""

import math
from collections.abc import Sequence
from functools import cache

_TINY = 1e-300  # in place of 0 in a denominator of the continued fraction
_ENOUGH = 1e-15  # relative change after which it has converged


def cdf(t: float, df: float) -> float:
    """Return the probability of at most `t` with `df` > 0 degrees of freedom, whole or not."""
    if math.isnan(t):
        return math.nan
    # Of both tails, see Abramowitz & Stegun 26.5.27.
    tails = _incomplete_beta(df / (df + t * t), t * t / (df + t * t), df / 2, 0.5)
    return tails / 2 if t < 0 else 1 - tails / 2


@cache
def quantile(p: float, df: float) -> float:
    """Return the `p`-quantile for 0.5 <= p < 1: bisect `cdf`."""
    assert 0.5 <= p < 1 and df > 0
    low, high = 0.0, 1.0
    while cdf(high, df) < p:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if cdf(middle, df) < p else (low, middle)
    return high


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values adjusted for all of those that are known, by Holm's step-down rule (1979).

    To call those below 0.05 different is to err with at most 5 % probability in the whole family.
    """
    adjusted, largest = list(p_values), 0.0
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    for done, (p, place) in enumerate(known):
        adjusted[place] = largest = max(largest, min(1.0, (len(known) - done) * p))
    return adjusted


def _incomplete_beta(x: float, rest: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b); `rest` is 1 - x.

    Where it converges fast, below the mean, the continued fraction is evaluated by Lentz's method
    (Press et al., Numerical Recipes, section 6.4), and elsewhere that of 1 - I_rest(b, a).
    """
    if x <= 0 or rest <= 0:
        return float(rest <= 0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(rest, x, b, a)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logs + a * math.log(x) + b * math.log(rest)) / a
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or _TINY)
    value, m = d, 0
    while True:
        m += 1
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = value
        for term in (even, odd):
            d = 1 / (1 + term * d or _TINY)
            c = 1 + term / c or _TINY
            value *= c * d
        if abs(value - before) <= _ENOUGH * abs(value):
            return front * value
