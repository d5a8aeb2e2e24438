"""What a run has measured: planned again, it takes what it took."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mugrpo.report.read import RunData
from mugrpo.tools.plan.calibrate import measured_by, misses, stages_of
from mugrpo.tools.plan.schedules import Planner
from tests.tools.plan.cases import setting

REFRESHES = [
    {
        "update": first,
        "rollouts": 16,
        "zero_variance_share": share,
        "time/refresh": 3.0 + start,
        "time/refresh/start": start,
        "time/generate": generate,
        "time/score": 0.4,
    }
    for first, share, start, generate in ((0, 0.0, 50.0, 7.0), (4, 0.5, 0.0, 9.0))
]
UPDATES = [
    {"update": n, "time/update": 2.0, "time/read": 0.25, "time/checkpoint": 6.0 * (n == 5)}
    for n in range(1, 9)
]
EVALUATIONS = [{"update": n, "time/evaluate": 5.0} for n in (0, 4, 8)]


def run(updates: int = 8) -> RunData:
    lines = [line for line in UPDATES if line["update"] <= updates]
    refreshes = [line for line in REFRESHES if line["update"] < updates]
    return RunData("a test", {}, {}, refreshes, lines, EVALUATIONS)


def test_stages_are_those_that_were_made():
    assert stages_of(run()) == [(0, 4), (4, 4)]
    assert stages_of(run(updates=6)) == [(0, 4), (4, 2)]


def test_a_run_planned_again_takes_what_it_took():
    made = setting(evaluation={"every": 4}, task={"eval_problems": 6})
    measured = measured_by(run(), made)
    assert (measured.start, measured.refresh, measured.checkpoint) == (50.0, 3.0, 6.0)
    assert measured.score == pytest.approx(0.8 / 32)
    planned = Planner(replace(made, measured=measured)).planned([4, 4], "colocated", 1, 1)
    pairs = misses(planned, run())
    assert pairs["refresh"] == (56.0, 56.0)
    assert pairs["training"][1] == pytest.approx(56 + 16 + 0.8 + 18 + 6)
    assert pairs.pop("checkpoint") == (12.0, 6.0)  # planned at the end of both stages
    pairs.pop("training")
    for part, (plan, took) in pairs.items():
        assert plan == pytest.approx(took), part
