"""The interval around an accuracy, worked out by hand and against published values."""

from __future__ import annotations

import pytest

from mugrpo.rollouts.accuracy import accuracy, interval

RIGHT = {"status": "right", "reward": 1.0}
WRONG = {"status": "wrong", "reward": 0.0}
UNKNOWN = {"status": "error", "reward": None}


@pytest.mark.parametrize(
    ("right", "of", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (3, 6, 0.1876, 0.8124)],
)
def test_one_sample_per_problem_gives_wilsons_interval(right, of, low, high):
    problems = [(1, 1)] * right + [(0, 1)] * (of - right)
    assert interval(problems) == pytest.approx((low, high), abs=5e-5)


def test_samples_that_always_agree_count_as_one_and_those_that_never_do_as_all():
    alike = interval([(4, 4)] * 8 + [(0, 4)] * 2)
    assert alike == interval([(1, 1)] * 8 + [(0, 1)] * 2)
    different = interval([(2, 4)] * 10)
    assert different == interval([(1, 1)] * 20 + [(0, 1)] * 20)


def test_samples_that_agree_sometimes_count_by_their_standard_error():
    # p = 1/2; deviations 2, -2, 0, 0 of 4 samples each: SE² = 8 / 16² x 4/3 = 1/24.
    # n = 1/4 x 24 = 6, which is between 4 problems and 16 samples.
    assert interval([(4, 4), (0, 4), (2, 4), (2, 4)]) == pytest.approx((0.1876, 0.8124), abs=5e-5)


def test_samples_without_a_verdict_are_left_out():
    verdicts = [RIGHT, UNKNOWN, WRONG, WRONG, UNKNOWN, UNKNOWN]
    metrics = accuracy(verdicts, 2)
    assert (metrics["accuracy_low"], metrics["accuracy_high"]) == interval([(1, 1), (0, 2)])
    assert metrics["accuracy"] == 1 / 3 and metrics["problems"] == 3
    none = accuracy([UNKNOWN] * 2, 1)
    assert none["accuracy"] is none["accuracy_low"] is none["accuracy_high"] is None
