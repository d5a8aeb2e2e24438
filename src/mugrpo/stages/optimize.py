"""The half of a stage that makes its updates, from what lies on disk."""

from __future__ import annotations

import math
import time
from typing import Any

from mugrpo.optimize.samples import SampleCollector
from mugrpo.run.run import Run
from mugrpo.stages.evaluate import evaluate_if_due
from mugrpo.stages.generate import heading
from mugrpo.stages.ranks import optimize_in_ranks
from mugrpo.stages.reader import StageReader
from mugrpo.stages.save import (
    checkpoint,
    checkpoint_due,
    keep_samples,
    report_nonfinite,
    samples_due,
)


def optimize_stage(run: Run, stage: int, until: int | None = None) -> None:
    """Make the stage's updates that no checkpoint holds yet, up to where it ends, or `until`."""
    first = run.schedule.first_update(stage)
    if run.newest_update >= run.schedule.first_update(stage + 1):
        run.progress.say(f"stage {stage}: all updates are made")
        return
    if run.alone and (run.config.distributed.processes > 1 or run.config.backend.name == "ray"):
        optimize_in_ranks(run, stage, until)
        return
    start = max(run.newest_update, first)
    evaluate_if_due(run, start)
    trainer = run.trainer_at(start)
    reader = StageReader(run, stage)
    planned = run.schedule.planned_updates(stage)
    run.progress.begin(heading(run, stage, "optimize"), "updates", planned, start - first)
    last = math.inf if until is None else until
    while trainer.update < min(run.schedule.first_update(stage + 1), last):
        run.check()
        run.rest_engines()
        began = time.monotonic()
        experience = reader.of_update(trainer.update)
        read_seconds = time.monotonic() - began
        told = {"stage": stage, "staleness": trainer.update - first}
        reward = run.progress.behavior_reward = reader.behavior_reward
        watch = SampleCollector() if samples_due(run, trainer.update + 1) else None
        metrics = trainer.step(experience, watch)
        metrics |= {"time/read": read_seconds, "time/checkpoint": run.checkpoint_seconds}
        run.checkpoint_seconds = 0.0  # they stand in the line of the next update
        if run.ranks.first:
            run.metrics.append("update", trainer.update, **told, behavior_reward=reward, **metrics)
            if watch is not None:
                keep_samples(run, experience, watch)
        if metrics["skipped"]:
            report_nonfinite(run, experience, metrics)
        end_if_stale(run, stage, metrics)
        if checkpoint_due(run, trainer.update):
            checkpoint(run)
        run.progress.advance(1, metrics["tokens"])
        evaluate_if_due(run, trainer.update)
    run.progress.end()


def end_if_stale(run: Run, stage: int, metrics: dict[str, Any]) -> None:
    """End the stage after this update where its `stage_until`, or the run, ends.

    What is left of its rollouts is not trained on: a "stage_end" line tells how many.
    """
    rule, update = run.config.stage_until, run.trainer.update
    moved = metrics.get(rule.name)
    before, planned = run.schedule, run.schedule.planned_updates(stage)
    made = update - before.first_update(stage)
    if made == planned:
        run.schedule = before.ending_at(update)
        return
    if moved is None or not moved > rule.limit:
        return
    run.schedule = before.ending_at(update)
    batches = math.ceil(made / before.options.passes_per_batch)
    rollouts = before.batches(stage) * before.options.rollouts_per_update
    unused = rollouts - batches * before.options.rollouts_per_update
    ends = {"stage": stage, "updates": made, "planned_updates": planned, "unused_rollouts": unused}
    if run.ranks.first:
        run.metrics.append("stage_end", update, **ends, **{rule.name: moved})
    run.progress.say(
        f"stage {stage} ends after {made} of {planned} updates: {rule.name} {moved:.3g}; {unused} "
        f"of its {rollouts} rollouts are not trained on"
    )
