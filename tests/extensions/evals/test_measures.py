"""avg@k, pass@k, maj@k and G-pass@k against enumeration, and properties that any input keeps."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mugrpo.extensions.evals.measures import (
    ProblemResult,
    Vote,
    g_pass_at,
    majority,
    measured,
    merged,
    mg_pass_at,
    t_interval,
    values,
)
from mugrpo.rollouts.statistics import avg_at, interval, pass_at
from tests.cases import table


@table("n", [1, 4, 7])
def test_every_subset_enumerated(n):
    for right in range(n + 1):
        outcomes = [True] * right + [False] * (n - right)
        for k in range(1, n + 1):
            subsets = [sum(subset) for subset in combinations(outcomes, k)]
            for least in range(1, k + 1):
                share = sum(count >= least for count in subsets) / len(subsets)
                assert pass_at([right], [n], k, least) == [share]
            for tau in (0.0, 0.3, 0.5, 0.75, 1.0):
                share = sum(count >= max(1, tau * k) for count in subsets) / len(subsets)
                assert g_pass_at([right], [n], k, tau) == [share]


def test_mean_g_pass_by_hand():
    """4 of 6 right, k = 4, 15 subsets: C(4,3) C(2,1) + 1 = 9 have 3 or more right, 1 has all.

    2/4 (9/15 + 1/15) = 1/3.
    """
    assert mg_pass_at([4], [6], 4) == pytest.approx([1 / 3])
    assert mg_pass_at([6, 0], [6, 6], 4).tolist() == [1.0, 0.0]


def test_tau_k_is_not_rounded_up_by_floating_point():
    assert 0.1 * 30 > 3 or 0.07 * 100 > 7
    assert g_pass_at([9], [200], 100, 0.07) == pass_at([9], [200], 100, 7)


def test_large_counts_are_exact():
    """1 of 4,096 right and half of them drawn: 1/2, and the same for one wrong."""
    assert pass_at([1, 4095], [4096] * 2, 2048).tolist() == [0.5, 1.0]
    assert g_pass_at([4095], [4096], 2048, 1.0) == [0.5]


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_more_tries_never_hurt_and_more_asked_never_helps(pair):
    n, right = pair
    passes = [pass_at([right], [n], k)[0] for k in range(1, n + 1)]
    assert passes == sorted(passes) and passes[0] >= 0 and passes[-1] <= 1
    assert passes[0] == avg_at([right], [n])[0]
    stable = [g_pass_at([right], [n], n, tau)[0] for tau in (0, 1e-6, 0.5, 0.75, 1)]
    assert stable[0] == stable[1] == passes[-1] and stable == sorted(stable, reverse=True)


def test_problems_with_too_few_verdicts_are_unknown():
    assert np.isnan(avg_at([0, 1], [0, 1])).tolist() == [True, False]
    assert np.isnan(pass_at([2, 2], [3, 4], 4)).tolist() == [True, False]


@table(
    ("votes", "share"),
    [
        ([], 0),
        ([("4", 3, True), ("5", 2, False)], 1),
        ([("4", 2, True), ("5", 2, False), ("6", 2, False), ("7", 1, False)], 1 / 3),
        ([("4", 1, True), ("5", 2, False)], 0),
        ([("5", 2, False)], 0),
    ],
)
def test_majority_by_hand(votes, share):
    assert majority([Vote(*vote) for vote in votes]) == share


class Equal:
    """Answers are equal if their first letters are; the calls are counted."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, a: str, b: str) -> bool:
        self.calls += 1
        return a[0] == b[0]


@table(
    ("votes", "share", "calls"),
    [
        # Right without a doubt: 4 votes against 3 wrong ones. 0.5 and 1/2 are both right.
        ([("r1", 2, True), ("r2", 2, True), ("a1", 2, False), ("a2", 1, False)], 1, 0),
        ([("r", 2, True), ("a", 3, False), ("b1", 1, False), ("b2", 1, False)], 0, 0),  # beaten
        ([("a1", 2, False), ("a2", 1, False)], 0, 0),  # no right answer
        ([("r", 2, True), ("a", 2, False)], 1 / 2, 0),  # nothing to merge with
        ([("r", 2, True), ("a1", 1, False), ("a2", 1, False)], 1 / 2, 1),  # a tie
        ([("r", 2, True), ("a1", 2, False), ("a2", 1, False), ("b", 1, False)], 0, 1),  # then sure
        ([("r", 3, True), ("a", 1, False), ("b", 1, False), ("c", 1, False)], 1, 1),
    ],
)
def test_answers_are_compared_only_if_it_matters(votes, share, calls):
    equal = Equal()
    assert majority(merged([Vote(*vote) for vote in votes], equal)) == share
    assert equal.calls == calls


VOTES = st.lists(
    st.tuples(st.sampled_from(["a1", "a2", "a3", "b1", "b2", "c1", "r1", "r2"]), st.integers(1, 4)),
    unique_by=lambda vote: vote[0],
)


@given(VOTES, st.randoms())
def test_merging_is_that_of_all_equal_answers_in_any_order(pairs, random):
    votes = [Vote(answer, count, answer[0] == "r") for answer, count in pairs]
    classes = [
        Vote(letter, sum(v.count for v in votes if v.answer[0] == letter), letter == "r")
        for letter in sorted({vote.answer[0] for vote in votes})
    ]
    expected = majority(classes)
    assert majority(merged(votes, Equal())) == expected
    random.shuffle(votes)
    assert majority(merged(votes, Equal())) == expected
    assert sum(vote.count for vote in merged(votes, Equal())) == sum(v.count for v in votes)


def result(right=0, judged=4, samples=4, majority=0.0, truncated=0, no_answer=0, tokens=40):
    return ProblemResult("p", right, judged, samples, majority, truncated, no_answer, tokens)


def test_measures_by_hand():
    """Three problems, four responses. The judge failed once on the second, always on the third."""
    results = [
        result(right=3, majority=1.0, truncated=1, tokens=100),
        result(right=1, judged=3, majority=0.5, no_answer=2, tokens=60),
        result(judged=0, majority=None, tokens=20),
    ]
    found = measured(results)
    shown = {name: (m.value, m.problems) for name, m in found.items()}
    assert shown == {
        "avg@4": (pytest.approx((3 / 4 + 1 / 3) / 2), 2),
        "pass@1": (pytest.approx((3 / 4 + 1 / 3) / 2), 2),
        "pass@2": (pytest.approx((1 + 2 / 3) / 2), 2),
        "pass@4": (1, 1),
        "maj@4": (0.75, 2),
        "G-pass@2_0.5": (pytest.approx((1 + 2 / 3) / 2), 2),
        "G-pass@2_0.75": (pytest.approx((1 / 2 + 0) / 2), 2),
        "G-pass@2_1": (pytest.approx((1 / 2 + 0) / 2), 2),
        "mG-pass@2": (pytest.approx((1 / 2 + 0) / 2), 2),
        "truncated": (pytest.approx(1 / 12), 3),
        "no_answer": (pytest.approx(2 / 12), 3),
        "mean_length": (15, 3),
    }
    assert (found["pass@4"].low, found["pass@4"].high) == (0, 1)
    lengths = found["mean_length"]
    assert (lengths.low, lengths.high) == t_interval([25, 15, 5])
    assert (found["avg@4"].low, found["avg@4"].high) == interval([3 / 4, 1 / 3], 4)


@table(
    ("n", "passes", "stable"),
    [(1, [1], None), (3, [1, 2, 3], None), (4, [1, 2, 4], 2), (32, [1, 2, 4, 8, 16, 32], 16)],
)
def test_the_k_of_each_measure(n, passes, stable):
    names = values([result(judged=n, samples=n)])
    assert [name for name in names if name.startswith("pass")] == [f"pass@{k}" for k in passes]
    assert [name for name in names if name.startswith("mG")] == (
        [f"mG-pass@{stable}"] if stable else []
    )


def test_what_has_no_interval_is_left_out():
    assert "mean_length" not in measured([result()])
    unjudged = measured([result(judged=0, majority=None)] * 2)
    assert list(unjudged) == ["truncated", "no_answer", "mean_length"]


@st.composite
def _results(draw):
    n = draw(st.integers(1, 9))

    def one(_):
        judged = draw(st.integers(0, n))
        right, cut, empty = (draw(st.integers(0, most)) for most in (judged, n, n))
        share = draw(st.sampled_from([None, 0.0, 0.5, 1.0]))
        return result(right, judged, n, share, cut, empty, draw(st.integers(0, 999)))

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
