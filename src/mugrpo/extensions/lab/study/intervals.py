"""Means over seeds with 95 % intervals, by Student's t distribution."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from mugrpo.rollouts.student import cdf, quantile


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
    mean, error, df = _moments(values)
    if df < 1:
        return None if df < 0 else Estimate(mean, None, 1)
    return Estimate(mean, quantile(0.975, df) * error, df + 1)


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


def difference_p(differences: Sequence[float | None]) -> float | None:
    """Return the two-sided p-value of the paired t test that the mean difference is 0.

    None if fewer than two differences are known; 0 or 1 if all are the same.
    """
    mean, error, df = _moments(differences)
    if df < 1:
        return None
    return 2 * cdf(-abs(mean) / error, df) if error else float(mean == 0)


def equivalence(differences: Sequence[float | None], margin: float) -> float | None:
    """Return the p-value of two one-sided tests that the mean difference is within +- `margin`.

    It is the larger p-value of the two paired t tests of "at most -margin" and "at least margin"
    (Schuirmann 1987). Below 0.05, the 90 % interval of the mean lies within the margin. None if
    fewer than two differences are known; 0 or 1 if all are the same.
    """
    mean, error, df = _moments(differences)
    if df < 1:
        return None
    room = margin - abs(mean)
    return cdf(-room / error, df) if error else float(room <= 0)


def _moments(values: Sequence[float | None]) -> tuple[float, float, int]:
    """Return mean, standard error and degrees of freedom (-1 of nothing) of the known values."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return sum(known), 0.0, 0 if known else -1
    return fmean(known), stdev(known) / math.sqrt(len(known)), len(known) - 1


def _exp(power: float) -> float:
    return math.exp(min(power, 700.0))  # a float holds up to e^709
