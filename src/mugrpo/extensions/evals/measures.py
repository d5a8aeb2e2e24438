"""The numbers of an evaluation, each with its 95 % interval, and comparisons of two results.

P problems, n responses to each, B benchmarks. Values of a problem that are not known are NaN and
left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mugrpo.disk.errors import UsageError
from mugrpo.rollouts.evaluation import Floats, avg_at, interval, pass_at
from mugrpo.rollouts.student import cdf, quantile

MEAN_LENGTH = "mean_length"  # the one measure that is no share


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean over `problems` problems with the ends of its 95 % interval."""

    value: float
    low: float
    high: float
    problems: int


@dataclass(frozen=True, slots=True)
class ProblemResult:
    """Counts of the `samples` responses to one problem, which has the id `id`."""

    id: str
    right: int
    judged: int  # responses with a verdict; failures of the judge have none
    samples: int
    truncated: int
    no_answer: int  # whole or not, the grader found no answer in them
    tokens: int  # of all responses together

    def __post_init__(self) -> None:
        assert 0 <= self.right <= self.judged <= self.samples and self.samples > 0
        assert 0 <= self.truncated <= self.samples and 0 <= self.no_answer <= self.samples


def values(results: Sequence[ProblemResult]) -> dict[str, Floats]:
    """Return every measure's values over problems, name -> [P], NaN where not known.

    All problems must have the same number of samples, n. k of pass@k is 1, 2, 4, ... and n.
    """
    assert results and len({result.samples for result in results}) == 1
    n = results[0].samples
    right_P, judged_P = [r.right for r in results], [r.judged for r in results]
    found = {f"avg@{n}": avg_at(right_P, judged_P)}
    for k in sorted({n, *(2**power for power in range(n.bit_length()))}):
        found[f"pass@{k}"] = pass_at(right_P, judged_P, k)
    found["truncated"] = np.array([r.truncated / n for r in results])
    found["no_answer"] = np.array([r.no_answer / n for r in results])
    found[MEAN_LENGTH] = np.array([r.tokens / n for r in results])
    return found


def measured(results: Sequence[ProblemResult]) -> dict[str, Measure]:
    """Return the mean over problems of each of `values`, with its 95 % interval.

    A measure that no problem has, and the mean length of a single problem, have no interval, and
    are left out.
    """
    found = {}
    for name, values_P in values(results).items():
        known = values_P[~np.isnan(values_P)]
        if len(known) == 0 or (name == MEAN_LENGTH and len(known) == 1):
            continue
        n = results[0].samples
        low, high = t_interval(known) if name == MEAN_LENGTH else interval(known, n)
        found[name] = Measure(float(known.mean()), float(low), float(high), len(known))
    return found


def t_interval(values_P: ArrayLike) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a mean over problems by Student's t.

    It is for values that are no shares, such as lengths. P must be at least 2. If all values are
    equal, its width is 0.
    """
    values_P = np.asarray(values_P, dtype=np.float64)
    assert values_P.ndim == 1 and len(values_P) > 1
    error = values_P.std(ddof=1) / math.sqrt(len(values_P))
    half = float(quantile(0.975, len(values_P) - 1) * error)
    return float(values_P.mean()) - half, float(values_P.mean()) + half


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of means with its 95 % interval, two-sided p-value and number of problems."""

    value: float
    low: float
    high: float
    p_value: float
    problems: int


def paired(a_P: ArrayLike, b_P: ArrayLike) -> Difference:
    """Return the mean of a - b over problems, by the paired t test.

    `a_P` and `b_P` are shares of the same problems in the same order; a problem of which one is
    NaN (unknown) is left out. Raises UsageError if no problem has both.

    If all differences are equal, as those of two models that are always right, their standard
    error of 0 means nothing. Then at most q = 1 - (alpha / 2)^(1/P) of all problems differ from
    them (Clopper and Pearson 1934), each by 1 at most from 0. The interval and the p-value,
    2 (1 + |d|)^-P, follow from that.
    """
    differences_P = _differences(a_P, b_P)
    mean, error, df = _moments(differences_P)
    if _all_equal(differences_P):
        q = _unseen(len(differences_P))
        low, high = mean - q * (1 + mean), mean + q * (1 - mean)
        p_value = min(1.0, 2 * (1 + abs(mean)) ** -len(differences_P))
        return Difference(mean, low, high, p_value, len(differences_P))
    return _difference(mean, error, df, len(differences_P))


def over_benchmarks(benchmarks: Sequence[tuple[ArrayLike, ArrayLike]]) -> Difference:
    """Return the mean of the benchmarks' differences. Each is a pair (a_P, b_P) for `paired`.

    Each benchmark counts the same, however few problems it has: the variance is the sum of the
    benchmarks' SE^2 over B^2, the degrees of freedom are those of Welch and Satterthwaite (1947).
    It is for these benchmarks, not for others that could be chosen.
    """
    differences = [_differences(a_P, b_P) for a_P, b_P in benchmarks]
    means, errors, dfs = zip(*map(_moments, differences), strict=True)
    parts = np.square(errors) / len(means) ** 2
    df = float(parts.sum() ** 2 / (parts**2 / dfs).sum())
    problems = sum(map(len, differences))
    return _difference(float(np.mean(means)), math.sqrt(parts.sum()), df, problems)


def _differences(a_P: ArrayLike, b_P: ArrayLike) -> Floats:
    differences_P: Floats = np.asarray(a_P, np.float64) - np.asarray(b_P, np.float64)
    differences_P = differences_P[~np.isnan(differences_P)]
    if not len(differences_P):
        raise UsageError("nothing to compare: no problem has a value in both results")
    return differences_P


def _moments(differences_P: Floats) -> tuple[float, float, int]:
    """Return mean, standard error and degrees of freedom, with an error above 0 in any case."""
    count = len(differences_P)
    if _all_equal(differences_P):
        # `paired` gives an interval of width 2 q, which would be that of about 4 errors.
        return float(differences_P[0]), _unseen(count) / 2, max(1, count - 1)
    error = float(differences_P.std(ddof=1)) / math.sqrt(count)
    return float(differences_P.mean()), error, count - 1


def _all_equal(differences_P: Floats) -> bool:
    return bool(np.ptp(differences_P) <= 1e-12)  # 0.3 - 0.2 is not 0.2 - 0.1


def _unseen(problems: int) -> float:
    """Return the upper 95 % limit of a share that no one of `problems` draws showed."""
    return float(1 - 0.025 ** (1 / problems))


def _difference(mean: float, error: float, df: float, problems: int) -> Difference:
    half = quantile(0.975, df) * error
    p_value = 2 * cdf(-abs(mean) / error, df)
    return Difference(mean, max(-1, mean - half), min(1, mean + half), p_value, problems)
