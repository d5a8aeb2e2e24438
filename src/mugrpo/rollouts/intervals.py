"""95 % intervals of means over problems, and comparisons of two results on the same problems.

P problems, B benchmarks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from mugrpo.disk.errors import UsageError

Floats = NDArray[np.float64]


def interval(values_P: ArrayLike, samples: float) -> tuple[Floats, Floats]:
    """Return the ends of the 95 % interval of the mean over problems of values in [0, 1].

    `values_P` is [..., P], each value computed from about `samples` responses to its problem. The
    ends have the leading shape. The interval is for the mean over all problems of the same source
    and all responses to them: both levels vary, and both are in the spread of the values over
    problems.

    The method is Wilson's interval (1927) with the effective number of responses of Korn and
    Graubard (1998), n = p (1 - p) / SE^2 with the standard error SE over problems, and with the
    quantile of Student's t with P - 1 degrees of freedom in place of the normal one. n is at least
    P, and at most all responses. If p is 0 or 1, n is P. Franco, Little, Louis and Slud (2019)
    recommend this form among eight.

    In the simulations of docs/evaluation.md it covers the mean in 93 to 97 % of the cases with 100
    problems or more. With 30 problems it covers less if p is near 0 or 1 because a few problems
    decide it (88 % in the worst case there), and up to 98 % with one response per problem. One
    problem says nothing about others: its interval is [0, 1].
    """
    values_P = np.asarray(values_P, dtype=np.float64)
    problems = values_P.shape[-1]
    assert problems > 0 and samples >= 1 and ((values_P >= 0) & (values_P <= 1)).all()
    mean = values_P.mean(-1)
    if problems == 1:
        return 0 * mean, 0 * mean + 1
    inner = mean * (1 - mean)
    variance = values_P.var(-1, ddof=1) / problems
    with np.errstate(divide="ignore", invalid="ignore"):
        n = np.where(variance > 0, inner / variance, problems * samples)
    n = np.clip(np.where(inner > 0, n, problems), problems, problems * samples)
    z = float(stdtrit(problems - 1, 0.975))
    middle = (mean + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(np.maximum(0, inner) / n + (z / (2 * n)) ** 2)
    return np.clip(middle - half, 0, mean), np.clip(middle + half, mean, 1)


def t_interval(values_P: ArrayLike) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a mean over problems by Student's t.

    It is for values that are no shares, such as lengths. P must be at least 2. If all values are
    equal, its width is 0.
    """
    values_P = np.asarray(values_P, dtype=np.float64)
    assert values_P.ndim == 1 and len(values_P) > 1
    error = values_P.std(ddof=1) / math.sqrt(len(values_P))
    half = float(stdtrit(len(values_P) - 1, 0.975) * error)
    return float(values_P.mean()) - half, float(values_P.mean()) + half


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of means with its 95 % interval, two-sided p-value and number of problems."""

    value: float
    low: float
    high: float
    p_value: float
    problems: int


def paired(a_P: ArrayLike, b_P: ArrayLike, span: float = 1.0) -> Difference:
    """Return the mean of a - b over problems, by the paired t test.

    `a_P` and `b_P` are values of the same problems in the same order; a problem of which one is
    NaN (unknown) is left out. `span` is the largest difference possible: 1 for shares, the limit
    on tokens for lengths.

    If all differences are equal, as those of two models that are always right, their standard
    error of 0 means nothing. Then at most q = 1 - (alpha / 2)^(1/P) of all problems differ from
    them (Clopper and Pearson 1934), each by `span` at most from 0. The interval and the p-value,
    2 (1 + |d| / span)^-P, follow from that. Raises UsageError if no problem has both values.
    """
    differences_P = _differences(a_P, b_P)
    mean, error, df = _moments(differences_P, span)
    if _all_equal(differences_P, span):
        q = _unseen(len(differences_P))
        low, high = mean - q * (span + mean), mean + q * (span - mean)
        p_value = min(1.0, 2 * (1 + abs(mean) / span) ** -len(differences_P))
        return Difference(mean, low, high, p_value, len(differences_P))
    return _difference(mean, error, df, len(differences_P), span)


def pooled(
    benchmarks: Sequence[tuple[ArrayLike, ArrayLike]], span: float = 1.0
) -> tuple[Difference, Difference]:
    """Return the difference over all problems, and the mean of the benchmarks' differences.

    Each benchmark is a pair (a_P, b_P) for `paired`. In the first result each problem counts the
    same. In the second each benchmark does, however few problems it has: its variance is the sum
    of the benchmarks' SE^2 over B^2, its degrees of freedom are those of Welch and Satterthwaite
    (1947). It is for these benchmarks, not for others that could be chosen.
    """
    assert benchmarks
    differences = [_differences(a_P, b_P) for a_P, b_P in benchmarks]
    everything = np.concatenate(differences)
    over_problems = paired(everything, np.zeros_like(everything), span)
    if len(differences) == 1:
        return over_problems, over_problems
    means, errors, dfs = zip(*(_moments(each, span) for each in differences), strict=True)
    parts = np.square(errors) / len(means) ** 2
    df = float(parts.sum() ** 2 / (parts**2 / dfs).sum())
    mean, error = float(np.mean(means)), math.sqrt(parts.sum())
    return over_problems, _difference(mean, error, df, len(everything), span)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's (1979) adjusted p-values of a family of comparisons, in the same order.

    To call those below 0.05 different is to err with at most 5 % probability in the whole family.
    """
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _differences(a_P: ArrayLike, b_P: ArrayLike) -> Floats:
    a_P, b_P = np.asarray(a_P, dtype=np.float64), np.asarray(b_P, dtype=np.float64)
    assert a_P.ndim == 1 and a_P.shape == b_P.shape
    differences_P: Floats = a_P - b_P
    differences_P = differences_P[~np.isnan(differences_P)]
    if not len(differences_P):
        raise UsageError("nothing to compare: no problem has a value in both results")
    return differences_P


def _moments(differences_P: Floats, span: float) -> tuple[float, float, int]:
    """Return mean, standard error and degrees of freedom, with an error above 0 in any case."""
    assert span > 0 and (abs(differences_P) <= span).all()
    count = len(differences_P)
    if _all_equal(differences_P, span):
        # `paired` gives an interval of width 2 q span, which would be that of about 4 errors.
        return float(differences_P[0]), _unseen(count) * span / 2, max(1, count - 1)
    error = float(differences_P.std(ddof=1)) / math.sqrt(count)
    return float(differences_P.mean()), error, count - 1


def _all_equal(differences_P: Floats, span: float) -> bool:
    return bool(np.ptp(differences_P) <= 1e-12 * span)  # 0.3 - 0.2 is not 0.2 - 0.1


def _unseen(problems: int) -> float:
    """Return the upper 95 % limit of a share that no one of `problems` draws showed."""
    return float(1 - 0.025 ** (1 / problems))


def _difference(mean: float, error: float, df: float, problems: int, span: float) -> Difference:
    half = float(stdtrit(df, 0.975)) * error
    p_value = 2 * float(stdtr(df, -abs(mean) / error))
    return Difference(mean, max(-span, mean - half), min(span, mean + half), p_value, problems)
