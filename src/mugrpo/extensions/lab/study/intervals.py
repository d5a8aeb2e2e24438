"""Means over seeds with 95 % intervals, by Student's t distribution."""

from __future__ import annotations

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
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return Estimate(known[0], None, 1)
    half_width = quantile(0.975, len(known) - 1) * stdev(known) / math.sqrt(len(known))
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


def difference_p(differences: Sequence[float | None]) -> float | None:
    """Return the two-sided p-value of the paired t test that the mean difference is 0.

    None if fewer than two differences are known; 0 or 1 if all are the same.
    """
    known = [value for value in differences if value is not None]
    if len(known) < 2:
        return None
    error = stdev(known) / math.sqrt(len(known))
    if error == 0:
        return float(fmean(known) == 0)
    return 2 * cdf(-abs(fmean(known)) / error, len(known) - 1)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values adjusted for all of those that are known, by Holm's step-down rule.

    One that stays below 0.05 is below it whatever the others are (Holm 1979): the chance that any
    true hypothesis of the family is rejected is at most 5 %.
    """
    adjusted = list(p_values)
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    largest = 0.0
    for done, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - done) * p))
        adjusted[place] = largest
    return adjusted


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
    return cdf(-room / error, len(known) - 1)


def _exp(power: float) -> float:
    return math.exp(min(power, 700.0))  # a float holds up to e^709
