"""The numbers of an evaluation, each with its 95 % interval, and comparisons of two results.

avg@k, pass@k, maj@k, G-pass@k. P problems, n responses to each, B benchmarks. Values of a problem
that are not known are NaN and left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from mugrpo.disk.errors import UsageError
from mugrpo.rollouts.statistics import Floats, avg_at, interval, pass_at

MEAN_LENGTH = "mean_length"  # the one measure that is no share


_TAUS = (0.5, 0.75, 1.0)


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
    majority: float | None  # `majority` of the votes; None if that is not known
    truncated: int
    no_answer: int  # whole or not, the grader found no answer in them
    tokens: int  # of all responses together

    def __post_init__(self) -> None:
        assert 0 <= self.right <= self.judged <= self.samples and self.samples > 0
        assert 0 <= self.truncated <= self.samples and 0 <= self.no_answer <= self.samples
        assert self.majority is None or 0 <= self.majority <= 1


@dataclass(frozen=True, slots=True)
class Vote:
    """An answer that `count` responses gave, all with the same verdict."""

    answer: str
    count: int
    right: bool


def g_pass_at(right_P: Sequence[int], judged_P: Sequence[int], k: int, tau: float) -> Floats:
    """Return G-pass@k_tau of each problem, [P] (Liu et al., arXiv 2412.13147).

    It is the probability that at least ceil(tau k) of k responses are right, and at least one. So
    it falls from pass@k as tau goes to 0 to the probability that all k are right at tau = 1.
    """
    assert 0 <= tau <= 1
    least = math.ceil(tau * k - 1e-9)  # 0.1 x 30 is a little more than 3
    return pass_at(right_P, judged_P, k, max(1, least))


def mg_pass_at(right_P: Sequence[int], judged_P: Sequence[int], k: int) -> Floats:
    """Return mG-pass@k of each problem, [P]: the mean of G-pass@k over tau in (0.5, 1].

        mG-pass@k = 2/k sum from i = k/2 + 1 to k of G-pass@k_(i/k)

    (Liu et al., arXiv 2412.13147). k must be even; with an odd one it cannot reach 1.
    """
    assert k >= 2 and k % 2 == 0
    parts = [pass_at(right_P, judged_P, k, least) for least in range(k // 2 + 1, k + 1)]
    mean_P: Floats = np.mean(parts, axis=0)
    return mean_P


def majority(votes: Sequence[Vote]) -> float:
    """Return maj@k of a problem: the share of right ones among the answers with the most votes.

    It is the probability that the winner is right if ties are broken at random, and 0 without
    votes. Equal answers must be `merged` before.
    """
    most = max((vote.count for vote in votes), default=0)
    first = [vote.right for vote in votes if vote.count == most]
    return sum(first) / len(first) if first else 0.0


def merged(votes: Sequence[Vote], equal: Callable[[str, str], bool]) -> list[Vote]:
    """Return the votes with those for equal answers added up, if `majority` depends on it.

    `equal` should be an equivalence. It is slow, so few pairs are compared. Right answers equal
    the reference, hence each other, and never a wrong one. Wrong answers are compared while they
    could still win or tie, but do not win yet. An answer is compared with one of each class.
    """
    right = sum(vote.count for vote in votes if vote.right)
    wrong = sorted((v for v in votes if not v.right), key=lambda v: (-v.count, v.answer))
    classes: list[Vote] = []
    rest = sum(vote.count for vote in wrong)  # votes that are not in a class
    for place, vote in enumerate(wrong):
        largest = max((each.count for each in (*classes, vote)), default=0)
        if largest > right or max((each.count for each in classes), default=0) + rest < right:
            classes += wrong[place:]
            break
        rest -= vote.count
        for index, each in enumerate(classes):
            if equal(each.answer, vote.answer):
                classes[index] = replace(each, count=each.count + vote.count)
                break
        else:
            classes.append(vote)
    first = next((vote.answer for vote in votes if vote.right), "")
    return [Vote(first, right, True), *classes] if right else classes


def values(results: Sequence[ProblemResult]) -> dict[str, Floats]:
    """Return every measure's values over problems, name -> [P], NaN where not known.

    All problems must have the same number of samples, n. k of pass@k is 1, 2, 4, ... and n. k of
    G-pass@k is the largest power of two with 2k <= n, if n is at least 4: subsets of all n are
    just one, so that each problem's value is 0 or 1 and varies most.
    """
    assert results and len({result.samples for result in results}) == 1
    n = results[0].samples
    right_P, judged_P = [r.right for r in results], [r.judged for r in results]
    found = {f"avg@{n}": avg_at(right_P, judged_P)}
    for k in sorted({n, *(2**power for power in range(n.bit_length()))}):
        found[f"pass@{k}"] = pass_at(right_P, judged_P, k)
    found[f"maj@{n}"] = np.array([math.nan if (m := r.majority) is None else m for r in results])
    if n >= 4:
        k = 2 ** ((n // 2).bit_length() - 1)
        for tau in _TAUS:
            found[f"G-pass@{k}_{tau:g}"] = g_pass_at(right_P, judged_P, k, tau)
        found[f"mG-pass@{k}"] = mg_pass_at(right_P, judged_P, k)
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
