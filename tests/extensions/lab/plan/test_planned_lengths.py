"""Lengths from files, from runs and from assumptions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.lab.plan.lengths import Lengths, assumed, from_run


def test_every_group_is_drawn_before_any_is_drawn_again():
    known = Lengths(np.arange(1, 6), np.arange(10).reshape(5, 2) + 1, "a test")
    prompts, responses = known.draw(10, 2)
    assert sorted(prompts[:5]) == sorted(prompts[5:]) == [1, 2, 3, 4, 5]
    assert (responses[:, 1] == 2 * prompts).all()  # groups stay whole
    _, four = known.draw(5, 4)
    assert four.shape == (5, 4)


def test_assumed_lengths_have_the_median_and_the_tail_that_are_asked_for():
    known = assumed(10_000, prompt=100, median=200, sigma=0.5)
    marks = np.quantile(known.responses, [0.5, 0.8413])
    assert marks[0] == pytest.approx(200, rel=0.02)
    assert marks[1] == pytest.approx(200 * np.exp(0.5), rel=0.02)  # one sigma above
    assert "99 %" in known.described()
    cut = assumed(200, prompt=100, median=200, sigma=0.5)
    assert cut.responses.max() == 200 and "50.0% cut" in cut.described().replace("49.9", "50.0")


def test_a_median_above_the_limit_and_a_run_without_rollouts_are_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="--median-tokens 300 must be between 1 and"):
        assumed(200, prompt=1, median=300, sigma=None)
    with pytest.raises(UsageError, match="has no rollouts to read lengths from; run"):
        from_run(tmp_path, 9)
