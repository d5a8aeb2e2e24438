"""The plan that a run keeps: what it is made from, when, and what it holds."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mugrpo
from mugrpo.config.load import build_config
from mugrpo.disk.run_dir import RunDir
from mugrpo.processes.ranks import ALONE
from mugrpo.report.plan_file import read_plan
from mugrpo.rollouts.schedule import Schedule
from mugrpo.tools.plan import kept
from mugrpo.tools.plan.kept import keep_plan
from tests.report.synthetic import timed_run, write_lengths

SCHEDULE = {
    "stages": 2,
    "growth": 1.0,
    "batches_per_stage": 4,
    "problems_per_update": 16,
    "group_size": 8,
}


def a_run(root: Path, said: list[str], **groups: Any) -> Any:
    """Return what `keep_plan` reads of a run, whose second stage of four updates is next."""
    timed_run(root, updates=4)
    manifest = write_lengths(root, 0, [12, 24] * 256).folder / "manifest.json"
    listed = json.loads(manifest.read_text())
    listed["shards"]["0"]["policy_step"] = 0
    manifest.write_text(json.dumps(listed))
    config = build_config(
        {"schedule": SCHEDULE, "evaluation": {"every": 4}, "model": {"device": "cpu"}, **groups},
        "a test",
    )
    return SimpleNamespace(
        folder=RunDir(root),
        config=config,
        ranks=ALONE,
        problems=["a problem"],
        prompts=lambda _: np.zeros(7),
        schedule=lambda: Schedule(config.schedule, 100, seed=0),
        progress=SimpleNamespace(say=said.append),
    )


def test_after_its_first_stage_a_run_is_planned_from_what_that_took(tmp_path: Path):
    """Refreshes 2 s, generation 10 s, judging 1 s, four updates 12 s, evaluations 5 s each."""
    said: list[str] = []
    run = a_run(tmp_path, said)
    keep_plan(run, 0)
    assert read_plan(run.folder) is None
    keep_plan(run, 1)
    plan = read_plan(run.folder)
    assert plan is not None and not said
    assert (plan.source, plan.begins) == ("what stage 0 took", 4)
    first, second = plan.stages
    assert (first.first, second.first) == (0, 4)
    assert first.counts == {"update": 4, "rollout": 512, "refresh": 1, "evaluation": 2}
    assert second.counts == {**first.counts, "evaluation": 1}
    took = {"refresh": 2.0, "generate": 10.0, "score": 1.0, "optimize": 12.0, "evaluate": 10.0}
    assert {part: first.seconds[part] for part in took} == pytest.approx(took)
    assert second.seconds["optimize"] == pytest.approx(12) and second.seconds["checkpoint"] == 0
    assert len(first.ends) == 20 and list(first.ends) == sorted(first.ends)
    assert first.ends[-1] == pytest.approx(1.0)


def test_the_api_keeps_it_as_the_command_does(monkeypatch):
    kept_before: list[int] = []
    monkeypatch.setattr(kept, "keep_plan", lambda run, stage: kept_before.append(stage))
    monkeypatch.setattr(
        kept.pipeline, "train", lambda run, on_metrics, before_stage: before_stage(7)
    )
    mugrpo.train(SimpleNamespace())
    assert kept_before == [7]


def test_a_run_with_a_machine_is_planned_when_it_begins_and_once(tmp_path: Path):
    run = a_run(tmp_path, [], machine="1xCPU")
    keep_plan(run, 0)
    plan = read_plan(run.folder)
    assert plan is not None and plan.begins == 0
    assert plan.source == "the machine 1xCPU and assumed lengths"
    kept = run.folder.plan.read_bytes()
    keep_plan(run, 1)
    assert run.folder.plan.read_bytes() == kept


def test_a_run_that_cannot_be_planned_says_why_and_goes_on(tmp_path: Path):
    said: list[str] = []
    run = a_run(tmp_path, said, machine="8xH300")
    keep_plan(run, 0)
    assert said and said[0].startswith("this run has no plan: --machine 8xH300: there is no such")
    assert not run.folder.plan.exists()


def test_the_last_checkpoint_is_not_planned_because_no_line_measures_it(tmp_path: Path):
    run = a_run(tmp_path, [])
    lines = [json.loads(line) for line in run.folder.metrics.read_text().splitlines()]
    for line in lines:
        line |= {"time/checkpoint": 3.0} if line["kind"] == "update" and line["update"] == 2 else {}
    run.folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    keep_plan(run, 1)
    plan = read_plan(run.folder)
    assert plan is not None
    assert [stage.seconds["checkpoint"] for stage in plan.stages] == [3.0, 0.0]
