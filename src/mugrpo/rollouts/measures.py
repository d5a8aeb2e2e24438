"""The numbers of an evaluation, each with its 95 % interval: avg@k, pass@k, maj@k, G-pass@k.

P problems, n responses to each. Values of a problem that are not known are NaN and left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from mugrpo.rollouts.intervals import interval, t_interval

Floats = NDArray[np.float64]
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


def avg_at(right_P: Sequence[int], judged_P: Sequence[int]) -> Floats:
    """Return each problem's share of right responses, [P]; NaN if none has a verdict."""
    return _each(lambda n, c: c / n, right_P, judged_P, 1)


def pass_at(right_P: Sequence[int], judged_P: Sequence[int], k: int, least: int = 1) -> Floats:
    """Return the probability that `least` or more of k responses to a problem are right, [P].

    It is unbiased: the share of all subsets of k of the n responses, c of them right, with that,

        sum over j >= least of C(c, j) C(n - c, k - j) / C(n, k).

    With `least` 1 it is pass@k = 1 - C(n - c, k) / C(n, k) (Chen et al., arXiv 2107.03374, eq. 1),
    and pass@1 = avg@n. Problems with fewer than k verdicts are NaN.
    """
    assert 1 <= least <= k
    return _each(lambda n, c: _at_least(n, c, k, least), right_P, judged_P, k)


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


def _each(
    value: Callable[[int, int], float], right_P: Sequence[int], judged_P: Sequence[int], k: int
) -> Floats:
    """Return value(judged, right) of each problem, NaN if it has fewer than k verdicts."""
    pairs = zip(right_P, judged_P, strict=True)
    return np.array([value(n, c) if n >= k else math.nan for c, n in pairs], dtype=np.float64)


@cache
def _at_least(n: int, c: int, k: int, least: int) -> float:
    """Return the hypergeometric P(X >= least) of k draws from n with c right, rounded once."""
    ways = sum(comb(c, j) * comb(n - c, k - j) for j in range(least, min(c, k) + 1))
    return ways / comb(n, k)
