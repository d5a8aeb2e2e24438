"""The plan that a run keeps, in plan.json: made when it begins, or after its first stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mugrpo import pipeline
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_json
from mugrpo.model.hardware import device_of
from mugrpo.report.read import RunData, lines_by_kind
from mugrpo.run.opened import OpenRun
from mugrpo.stages.work import OnMetrics
from mugrpo.tools.plan.calibrate import measured_by
from mugrpo.tools.plan.generation import Generated
from mugrpo.tools.plan.lengths import assumed, from_run
from mugrpo.tools.plan.machine import load_machine
from mugrpo.tools.plan.schedules import Planner
from mugrpo.tools.plan.setting import Setting, as_configured, shape_of

_MARKS = 20  # of a stage's generation: when each twentieth of its rollouts has ended
_PROMPTS = 64  # problems whose prompts stand for all


def train(run: OpenRun, on_metrics: OnMetrics | None = None) -> None:
    """Do everything in the run that is not done yet, and keep its plan. See `pipeline.train`."""
    pipeline.train(run, on_metrics, before_stage=lambda stage: keep_plan(run, stage))


def keep_plan(run: OpenRun, stage: int) -> None:
    """Store the run's plan before `stage` begins, unless it has one or nothing is known yet.

    With `machine`, a run is planned when it begins, with assumed lengths. Otherwise it is planned
    before its second stage, from the seconds and lengths of the first. Then the rates of a known
    machine only decide how a part's seconds change with lengths and sizes. A run that cannot be
    planned says why, and goes on.
    """
    if run.folder.plan.exists() or not run.ranks.first or not (run.config.machine or stage):
        return
    try:
        setting, source, begins = _foreseen(run) if run.config.machine else _measured(run, stage)
        publish_json(run.folder.plan, _document(run, Planner(setting), source, begins))
    except UsageError as error:
        run.progress.say(f"this run has no plan: {error}")


def _foreseen(run: OpenRun) -> tuple[Setting, str, int]:
    """Return what a run is planned from before it begins, in words too, and the update: 0."""
    config, machine = run.config, load_machine(str(run.config.machine))
    sample = run.problems[:: max(1, len(run.problems) // _PROMPTS)]
    prompt = round(float(np.mean([len(run.prompts(problem)) for problem in sample])))
    lengths = assumed(config.rollouts.max_new_tokens, prompt=prompt, median=None, sigma=None)
    source = f"the machine {machine.name} and assumed lengths"
    return Setting(config, shape_of(config, None), machine, lengths), source, 0


def _measured(run: OpenRun, stage: int) -> tuple[Setting, str, int]:
    """Return what a run is planned from after the stages before `stage`."""
    begins = run.schedule().first_update(stage)
    lines = lines_by_kind(run.folder, [])
    past = {kind: [one for one in lines[kind] if one["update"] <= begins] for kind in lines}
    refreshes = [line for line in past["refresh"] if line["update"] < begins]
    data = RunData("", {}, {}, refreshes, past["update"], past["evaluation"])
    lengths = from_run(run.folder.root)
    seen = tuple(one for one in lengths.seen if one.update < begins)
    lengths = replace(lengths, seen=seen or lengths.seen[:1])
    setting = Setting(run.config, shape_of(run.config, None), _alike(run), lengths)
    setting = replace(setting, measured=measured_by(data, setting))
    stages = "stage 0" if stage == 1 else f"stages 0 to {stage - 1}"
    return setting, f"what {stages} took", begins


def _alike(run: OpenRun) -> Any:
    """Return a known machine of the same kind: it has the devices that updates have."""
    if device_of(run.config.model) == "cpu":
        return load_machine("1xCPU")
    return load_machine(f"{run.config.distributed.processes}xH100")


def _document(run: OpenRun, planner: Planner, source: str, begins: int) -> dict[str, Any]:
    """Return plan.json, see `mugrpo.report.plan_file`. The last checkpoint is never measured."""
    planner.require_fit()
    setting, config = planner.setting, run.config
    devices = setting.machine.devices
    stages = as_configured(config.schedule)
    plan = planner.planned(stages, "colocated", devices, devices)
    evaluated = sorted(planner.evaluations(devices))
    found, first = list[dict[str, Any]](), 0
    for number, (updates, seconds) in enumerate(zip(stages, plan.of_stages, strict=True)):
        groups, end = setting.sampled(first, updates), first + updates
        counts = {
            "update": updates,
            "rollout": groups * config.schedule.group_size,
            "refresh": 1,
            "evaluation": sum(first < u <= end or u == first == 0 for u in evaluated),
        }
        ends = _marks(planner.generated(first, groups, devices, number))
        found.append({"first": first, "counts": counts, "seconds": dict(seconds), "ends": ends})
        first = end
    found[-1]["seconds"]["checkpoint"] -= planner.checkpoint(devices)
    return {"source": source, "begins": begins, "stages": found}


def _marks(made: Generated) -> Sequence[float]:
    shares = np.quantile(made.ends, np.arange(1, _MARKS + 1) / _MARKS, method="inverted_cdf")
    return [round(float(share), 4) for share in shares / made.seconds]
