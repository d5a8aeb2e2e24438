"""Means over seeds with 95 % intervals, by Student's t distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtr, stdtrit
from scipy.stats import spearmanr


@dataclass(frozen=True)
class Estimate:
    """A mean of `count` values, and half the width of its 95 % interval (None if `count` is 1)."""

    mean: float
    half_width: float | None
    count: int


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Return the estimate over the known values, or None if there is none.

    The interval assumes that the values are draws from one normal distribution. Runs that either
    learn or collapse are not. Their interval is wide, and only the individual values show what
    happened.
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return Estimate(known[0], None, 1)
    half_width = t_quantile(len(known) - 1) * stdev(known) / math.sqrt(len(known))
    return Estimate(fmean(known), half_width, len(known))


def geometric(values: Sequence[float | None]) -> tuple[float, float, float, int] | None:
    """Return (geometric mean, low, high, count) of the positive values, or None if there are none.

    The interval is that of their logarithms.
    """
    known = [math.log(value) for value in values if value is not None and value > 0]
    logs = estimate(known)
    if logs is None:
        return None
    half = logs.half_width or 0.0
    middle, low, high = (_exp(logs.mean + shift) for shift in (0.0, -half, half))
    return middle, low, high, logs.count


def equivalence(differences: Sequence[float | None], margin: float) -> float | None:
    """Return the p-value of two one-sided tests that the mean difference is within +- `margin`.

    It is the larger p-value of the two paired t tests of "at most -margin" and "at least margin"
    (Schuirmann 1987). Below 0.05, the 90 % interval of the mean lies within the margin. None if
    fewer than two differences are known; 0 or 1 if all are the same.
    """
    known = [value for value in differences if value is not None]
    if len(known) < 2:
        return None
    error = stdev(known) / math.sqrt(len(known))
    room = margin - abs(fmean(known))
    if error == 0:
        return float(room <= 0)
    return float(stdtr(len(known) - 1, -room / error))


def rank_correlation(pairs: Sequence[tuple[float | None, float | None]]) -> Estimate | None:
    """Return Spearman's rank correlation of the pairs that are known, or None if it is undefined.

    The half width is that of a 95 % interval by Fisher's transformation, with the standard error
    1.06 / (n - 3)^0.5 of ranks. The interval is not symmetric; its longer side is given.
    """
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(known) < 4 or any(len(set(side)) < 2 for side in zip(*known, strict=True)):
        return None
    rho = float(spearmanr(*zip(*known, strict=True)).statistic)
    middle = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, rho)))
    error = 1.96 * 1.06 / math.sqrt(len(known) - 3)
    half_width = max(rho - math.tanh(middle - error), math.tanh(middle + error) - rho)
    return Estimate(rho, half_width, len(known))


def _exp(power: float) -> float:
    return math.exp(min(power, 700.0))  # a float holds up to e^709


def t_quantile(degrees_of_freedom: int) -> float:
    """Return the 0.975 quantile of Student's t to three decimals, as published tables give it."""
    return round(float(stdtrit(degrees_of_freedom, 0.975)), 3)
