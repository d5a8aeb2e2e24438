"""avg@k and pass@k against enumeration, and properties that any input keeps."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mugrpo.extensions.evals.measures import ProblemResult, measured, t_interval
from mugrpo.rollouts.evaluation import avg_at, interval, pass_at
from tests.cases import table


@table("n", [1, 4, 7])
def test_every_subset_enumerated(n):
    for right in range(n + 1):
        outcomes = [True] * right + [False] * (n - right)
        for k in range(1, n + 1):
            subsets = [sum(subset) for subset in combinations(outcomes, k)]
            share = sum(count > 0 for count in subsets) / len(subsets)
            assert pass_at([right], [n], k) == [share]


def test_large_counts_are_exact():
    """1 of 4,096 right and half of them drawn: 1/2, and the same for one wrong."""
    assert pass_at([1, 4095], [4096] * 2, 2048).tolist() == [0.5, 1.0]


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_more_tries_never_hurt(pair):
    n, right = pair
    passes = [pass_at([right], [n], k)[0] for k in range(1, n + 1)]
    assert passes == sorted(passes) and passes[0] >= 0 and passes[-1] <= 1
    assert passes[0] == avg_at([right], [n])[0]


def test_problems_with_too_few_verdicts_are_unknown():
    assert np.isnan(avg_at([0, 1], [0, 1])).tolist() == [True, False]
    assert np.isnan(pass_at([2, 2], [3, 4], 4)).tolist() == [True, False]


def result(right=0, judged=4, samples=4, truncated=0, no_answer=0, tokens=40):
    return ProblemResult("p", right, judged, samples, truncated, no_answer, tokens)


def test_measures_by_hand():
    """Three problems, four responses. The judge failed once on the second, always on the third."""
    results = [
        result(right=3, truncated=1, tokens=100),
        result(right=1, judged=3, no_answer=2, tokens=60),
        result(judged=0, tokens=20),
    ]
    found = measured(results)
    shown = {name: (m.value, m.problems) for name, m in found.items()}
    assert shown == {
        "avg@4": (pytest.approx((3 / 4 + 1 / 3) / 2), 2),
        "pass@1": (pytest.approx((3 / 4 + 1 / 3) / 2), 2),
        "pass@2": (pytest.approx((1 + 2 / 3) / 2), 2),
        "pass@4": (1, 1),
        "truncated": (pytest.approx(1 / 12), 3),
        "no_answer": (pytest.approx(2 / 12), 3),
        "mean_length": (15, 3),
    }
    assert (found["pass@4"].low, found["pass@4"].high) == (0, 1)
    lengths = found["mean_length"]
    assert (lengths.low, lengths.high) == t_interval([25, 15, 5])
    assert (found["avg@4"].low, found["avg@4"].high) == interval([3 / 4, 1 / 3], 4)


def test_what_has_no_interval_is_left_out():
    assert "mean_length" not in measured([result()])
    unjudged = measured([result(judged=0)] * 2)
    assert list(unjudged) == ["truncated", "no_answer", "mean_length"]


@st.composite
def _results(draw):
    n = draw(st.integers(1, 9))

    def one(_):
        judged = draw(st.integers(0, n))
        right, cut, empty = (draw(st.integers(0, most)) for most in (judged, n, n))
        return result(right, judged, n, cut, empty, draw(st.integers(0, 999)))

    return [one(_) for _ in range(draw(st.integers(1, 6)))]


@given(_results(), st.randoms())
def test_every_measure_lies_in_its_interval_whatever_the_order(results, random):
    found = measured(results)
    for name, each in found.items():
        assert each.low <= each.value <= each.high and math.isfinite(each.high - each.low)
        assert name == "mean_length" or (each.low >= 0 and each.high <= 1)
    random.shuffle(results)
    again = measured(results)
    assert list(again) == list(found)
    for name, each in found.items():
        one, other = again[name], each
        assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high))
