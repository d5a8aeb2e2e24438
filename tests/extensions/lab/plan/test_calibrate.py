"""What a run has measured: planned again, it takes what it took."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mugrpo.extensions.lab.plan.calibrate import measured_by, stages_of
from mugrpo.extensions.lab.plan.schedules import Planner
from mugrpo.report.read import RunData
from tests.extensions.lab.plan.cases import setting

REFRESHES = [
    {
        "kind": "refresh",
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
    {
        "kind": "update",
        "update": n,
        "time/update": 2.0,
        "time/read": 0.25,
        "time/checkpoint": 6.0 * (n == 5),
    }
    for n in range(1, 9)
]
EVALUATIONS = [{"kind": "evaluation", "update": n, "time/evaluate": 5.0} for n in (0, 4, 8)]


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
    took = {"refresh": 56.0, "generate": 16.0, "score": 0.8, "optimize": 8 * 2.25, "evaluate": 15.0}
    assert {part: planned.parts[part] for part in took} == pytest.approx(took)
    assert planned.parts["checkpoint"] == 12.0  # planned at the end of both stages
    first = {"refresh": 53.0, "score": 0.4, "checkpoint": 6.0, "evaluate": 10.0}
    assert {part: planned.of_stages[0][part] for part in first} == pytest.approx(first)


def test_a_stage_that_is_not_over_has_generated_all_of_its_rollouts():
    """After 6 of 8 updates, both stages are generated: the factor is that of the whole run."""
    made = setting(evaluation={"every": 4}, task={"eval_problems": 6})
    assert measured_by(run(updates=6), made).generate == measured_by(run(), made).generate
