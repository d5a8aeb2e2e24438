"""The metrics of held-out problems, worked out by hand."""

from __future__ import annotations

import pytest

from mugrpo.rollouts.accuracy import accuracy
from mugrpo.rollouts.intervals import interval

RIGHT = {"status": "right", "reward": 1.0}
WRONG = {"status": "wrong", "reward": 0.0}
UNKNOWN = {"status": "error", "reward": None}


def test_accuracy_is_the_mean_over_problems():
    metrics = accuracy([RIGHT, RIGHT, RIGHT, WRONG, WRONG, WRONG], 2)
    assert (metrics["accuracy_low"], metrics["accuracy_high"]) == interval([1, 0.5, 0], 2)
    assert metrics["accuracy"] == metrics["reward"] == 1 / 2 and metrics["pass@2"] == 2 / 3


def test_samples_without_a_verdict_are_left_out():
    """Of two samples each: one right and one unknown, two wrong, two unknown."""
    verdicts = [RIGHT, UNKNOWN, WRONG, WRONG, UNKNOWN, UNKNOWN]
    metrics = accuracy(verdicts, 2)
    assert (metrics["accuracy_low"], metrics["accuracy_high"]) == interval([1, 0], 2)
    assert metrics["accuracy"] == 1 / 2 and metrics["reward"] == pytest.approx(1 / 3)
    assert metrics["pass@2"] == 0 and metrics["problems"] == 3 and metrics["status/error"] == 3
    none = accuracy([UNKNOWN] * 2, 1)
    for name in ("accuracy", "accuracy_low", "accuracy_high", "reward", "pass@1"):
        assert none[name] is None
