"""Means over seeds with 95 % intervals, by Student's t distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit


@dataclass(frozen=True)
class Estimate:
    """A mean of `count` values and half the width of its 95 % interval, None of a single value."""

    mean: float
    half_width: float | None
    count: int


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Return the estimate over the known values, or None if there is none.

    The interval takes the values for draws from one normal distribution. Runs that either learn or
    collapse are not: then it is wide, and only the single values tell what happened.
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return Estimate(known[0], None, 1)
    half_width = t_quantile(len(known) - 1) * stdev(known) / math.sqrt(len(known))
    return Estimate(fmean(known), half_width, len(known))


def geometric(values: Sequence[float | None]) -> tuple[float, float, float, int] | None:
    """(mean, low, high, count) of positive values, by an interval of their logarithms."""
    known = [math.log(value) for value in values if value is not None and value > 0]
    found = estimate(known)
    if found is None:
        return None
    half = found.half_width or 0.0
    middle, low, high = (_exp(found.mean + shift) for shift in (0.0, -half, half))
    return middle, low, high, found.count


def _exp(power: float) -> float:
    return math.exp(min(power, 700.0))  # e^709 is the last that has a number


def t_quantile(degrees_of_freedom: int) -> float:
    """Return the 0.975 quantile to three decimals, as the published tables use it."""
    return round(float(stdtrit(degrees_of_freedom, 0.975)), 3)
