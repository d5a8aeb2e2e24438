"""Means over seeds with 95 % intervals, by Student's t distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

# The 0.975 quantiles of Student's t distribution with 1, 2, ... degrees of freedom.
_T: tuple[float, ...] = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
)
_T += (2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056)
_T += (2.052, 2.048, 2.045, 2.042)
_NORMAL = 1.960


@dataclass(frozen=True)
class Estimate:
    """A mean of `count` values and half the width of its 95 % interval, None of a single value."""

    mean: float
    half_width: float | None
    count: int


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Over those that are known; None where none is.

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
    """The 0.975 quantile; the normal distribution's from 31 degrees of freedom, 2 % too small."""
    return _T[degrees_of_freedom - 1] if degrees_of_freedom <= len(_T) else _NORMAL
