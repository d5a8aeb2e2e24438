"""The times of a run of two stages of two updates, added up by hand."""

from __future__ import annotations

import pytest

from mugrpo.report.read import (
    RunData,
    grpo_cost,
    phase_seconds,
    read_runs,
    spans,
    training_clock,
    training_seconds,
)
from tests.report.synthetic import evaluation, refresh, update, write_config, write_metrics

REFRESHES = (
    refresh(0, 0, **{"time/refresh": 1.0, "time/generate": 10.0, "time/score": 2.0}),
    refresh(2, 1, **{"time/refresh": 3.0, "time/generate": 20.0, "time/score": 2.0}),
)


def timed(number: int, checkpoint: float = 0.0) -> dict[str, object]:
    seconds = {"time/update": 3.0, "time/read": 0.5, "time/checkpoint": checkpoint}
    return update(number, **seconds)


@pytest.fixture
def run(tmp_path) -> RunData:
    write_config(tmp_path, stages=2, batches_per_stage=2)
    lines = [
        evaluation(0, 0.25, **{"time/evaluate": 5.0}),
        REFRESHES[0],
        timed(1),
        timed(2),
        evaluation(2, 0.5, **{"time/evaluate": 6.0}),
        REFRESHES[1],
        timed(3, checkpoint=4.0),  # what was saved after update 2
        timed(4),
        evaluation(4, 0.75, **{"time/evaluate": 7.0}),
    ]
    write_metrics(tmp_path, lines)
    return read_runs([tmp_path])[0]


def test_spans_are_in_the_order_in_which_things_happened(run):
    assert [(s.phase, s.stage, s.seconds) for s in spans(run)] == [
        ("evaluate", 0, 5.0),
        ("refresh", 0, 1.0),
        ("generate", 0, 10.0),
        ("score", 0, 2.0),
        ("optimize", 0, 3.5),
        ("optimize", 0, 3.5),
        ("checkpoint", 0, 4.0),
        ("evaluate", 0, 6.0),
        ("refresh", 1, 3.0),
        ("generate", 1, 20.0),
        ("score", 1, 2.0),
        ("optimize", 1, 3.5),
        ("optimize", 1, 3.5),
        ("evaluate", 1, 7.0),
    ]


def test_the_training_clock_leaves_evaluation_out(run):
    assert training_clock(run) == {
        ("evaluation", 0): 0.0,
        ("update", 1): 16.5,
        ("update", 2): 20.0,
        ("evaluation", 2): 24.0,  # with the checkpoint after update 2
        ("update", 3): 52.5,
        ("update", 4): 56.0,
        ("evaluation", 4): 56.0,
    }
    assert training_seconds(run) == 56.0


def test_phases_add_up(run):
    assert phase_seconds(spans(run)) == {
        "refresh": 4.0,
        "generate": 30.0,
        "score": 4.0,
        "optimize": 14.0,
        "checkpoint": 4.0,
        "evaluate": 18.0,
    }


def test_grpo_refreshes_every_fourth_update_at_the_mean_measured_cost(run):
    cost = grpo_cost(run)
    assert cost is not None
    assert (cost.refreshes, cost.refresh_seconds, cost.measured) == (1, 2.0, 2)
    assert cost.training_seconds == 56.0 - 4.0 + 1 * 2.0


@pytest.mark.parametrize(("updates", "refreshes"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_the_last_refresh_may_be_for_fewer_than_four_updates(tmp_path, updates, refreshes):
    write_config(tmp_path)
    write_metrics(tmp_path, [REFRESHES[0], *(timed(n) for n in range(1, updates + 1))])
    cost = grpo_cost(read_runs([tmp_path])[0])
    assert cost is not None and cost.refreshes == refreshes
    assert cost.training_seconds == 12.0 + 3.5 * updates + refreshes * 1.0


def test_without_a_measured_refresh_there_is_no_cost(tmp_path):
    write_config(tmp_path)
    write_metrics(tmp_path, [refresh(0, 0, **{"time/generate": 1.0}), timed(1)])
    assert grpo_cost(read_runs([tmp_path])[0]) is None


def test_lines_out_of_order_read_as_if_they_were_in_order(tmp_path, run):
    write_config(tmp_path / "b")
    lines = [*run.updates, *run.evaluations, *run.refreshes]
    write_metrics(tmp_path / "b", [dict(line) for line in lines])
    assert spans(read_runs([tmp_path / "b"])[0]) == spans(run)
