"""Which problems a stage passes over, from rates written by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mugrpo.config.load import build_config
from mugrpo.config.stages import RatedProblems
from mugrpo.disk.records import Problem
from mugrpo.rollouts.difficulty import passed_over, stated_rates, with_measured

RATES = np.array([0.0, 0.25, 0.5, 0.75, 1.0, math.nan])
NOT_RECENT = np.zeros(6, np.bool_)


def options(**raw: Any) -> RatedProblems:
    chosen = build_config({"difficulty": {"name": "band", **raw}}, "test").difficulty
    assert isinstance(chosen, RatedProblems)
    return chosen


def out(chosen: RatedProblems, stage: int = 0, seed: int = 0, recent=NOT_RECENT) -> list[int]:
    excluded_P = passed_over(chosen, RATES, recent, seed=seed, stage=stage)
    return np.flatnonzero(excluded_P).tolist()


def test_a_band_has_its_ends_and_unknown_rates():
    assert out(options()) == []
    assert out(options(low=0.25, high=0.75)) == [0, 4]
    assert out(options(low=0.5)) == [0, 1]


def test_a_curriculum_has_a_band_for_each_stage_and_the_last_one_stays():
    easy_first = options(low=[0.75, 0.25, 0.0], high=[1.0, 0.75])
    assert [out(easy_first, stage) for stage in range(4)] == [[0, 1, 2], [0, 4], [4], [4]]


def test_a_problem_that_was_drawn_too_recently_is_passed_over_whatever_its_rate():
    recent = np.array([False, False, True, False, False, True])
    assert out(options(low=0.25, high=0.75), recent=recent) == [0, 2, 4, 5]


def test_near_half_keeps_a_problem_with_probability_4_p_1_minus_p():
    """3/4 at p = 1/4 and 3/4; never at 0 and 1; always at 1/2 and unknown. sd of a share: 0.007."""
    half = options(name="half")
    times = np.zeros(6)
    for stage in range(4000):
        times += passed_over(half, RATES, NOT_RECENT, seed=1, stage=stage)
    assert times[[0, 2, 4, 5]].tolist() == [4000, 0, 4000, 0]
    assert abs(times[[1, 3]] / 4000 - 0.25).max() < 0.035
    draws = [out(half, stage, seed) for seed in range(3) for stage in range(6)]
    assert draws == [out(half, stage, seed) for seed in range(3) for stage in range(6)]
    assert len(set(map(tuple, draws))) > 1


def test_measured_rates_replace_stated_ones():
    rows = [{"rate": "0.5"}, {"rate": 1}, {}, {"rate": None}]
    problems = [Problem(f"p{n}", "?", "", row) for n, row in enumerate(rows)]
    stated = stated_rates(problems, "rate")
    np.testing.assert_array_equal(stated, [0.5, 1, math.nan, math.nan])
    found = with_measured(stated, {0: [True, False, False, True, False], 2: [True], 1: []})
    np.testing.assert_array_equal(found, [0.4, 1, 1, math.nan])
    assert np.isnan(stated_rates(problems, None)).all()
