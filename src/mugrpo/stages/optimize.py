"""The half of a stage that makes its updates, from the shards on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mugrpo.config.run import RunConfig
from mugrpo.config.stages import MEASURED
from mugrpo.disk.errors import RunStopped
from mugrpo.disk.metrics import MetricsLog
from mugrpo.disk.publishing import publish_json, with_sum
from mugrpo.optimize.diagnostics import SampleCollector
from mugrpo.optimize.experience import Experience
from mugrpo.rollouts.schedule import Schedule
from mugrpo.run.opening import OpenRun
from mugrpo.stages.evaluate import SAMPLES, best_may_change
from mugrpo.stages.logprobs import Compute, StageReader
from mugrpo.stages.stage import Stage
from mugrpo.stages.training import Training

Metrics = dict[str, Any]

_NONFINITE_LIMIT = 3  # updates in a row that are not applied: one may be an overflow


def optimize_stage(
    run: OpenRun,
    stage: Stage,
    training: Training,
    metrics: MetricsLog,
    *,
    compute: Compute,
    arrived: Callable[[StageReader, int], None],
    between: Callable[[int], None],
    until: int | None = None,
) -> None:
    """Make the stage's updates that no checkpoint holds yet, up to its end or to `until`.

    `compute` returns logprobs of other policies. `arrived` waits for the shards of an update that
    are still being generated. `between` is called with the number of updates, before the first one
    and after each. Raises RunStopped after too many updates in a row that were not applied.
    """
    first, config = stage.first_update, run.config
    start = max(run.folder.newest_update(), first)
    between(start)
    trainer = training.at(start)
    reader = StageReader(stage, compute)
    planned = stage.schedule.planned_updates(stage.number)
    run.progress.begin(stage.heading("optimize"), "updates", planned, start - first)
    end = first + planned if until is None else min(first + planned, until)
    while trainer.update < end:
        run.check()
        began = time.monotonic()
        arrived(reader, trainer.update)
        experience = reader.of_update(trainer.update)
        line: Metrics = {"stage": stage.number, "staleness": trainer.update - first}
        line["time/read"] = time.monotonic() - began
        line["time/checkpoint"] = training.take_checkpoint_seconds()
        line["behavior_reward"] = run.progress.behavior_reward = reader.behavior_reward()
        watch = SampleCollector() if samples_due(config, stage, trainer.update + 1) else None
        line |= trainer.step(experience, watch)
        update = trainer.update
        early_end = ends_early(stage, update, line)
        if run.ranks.first:
            metrics.append("update", update, **line)
            if watch is not None:
                keep_samples(run, stage, update, experience, watch)
            if early_end:
                metrics.append("stage_end", update, **early_end)
        if line["skipped"]:
            report_nonfinite(run, update, experience, line, trainer.nonfinite_in_a_row)
        if early_end:
            run.progress.say(early_end_sentence(stage, early_end))
        if early_end or update == first + planned:
            training.schedule, end = stage.schedule.ending_at(update), update
        training.unsaved_seconds += line["time/update"]
        if checkpoint_due(config, training.schedule, update):
            training.save(rests=update == end)
        elif best_may_change(config, update) or training.overdue():
            training.save(temporary=True, rests=update == end)
        run.progress.advance(1, line["tokens"])
        between(update)
    run.progress.end()


def ends_early(stage: Stage, update: int, line: Metrics) -> Metrics | None:
    """Return the "stage_end" line if `stage_until` ends the stage after `update` updates.

    Return None if the stage continues, or ends as planned. The remaining rollouts are not trained
    on; the line counts them.
    """
    rule, schedule = stage.config.stage_until, stage.schedule
    measured = line.get(MEASURED.get(rule.name, ""))
    updates, planned = update - stage.first_update, schedule.planned_updates(stage.number)
    if updates == planned or measured is None or not measured > rule.limit:
        return None
    unused = schedule.batches(stage.number) - len(schedule.used(stage.number, update))
    return {
        "stage": stage.number,
        "updates": updates,
        "planned_updates": planned,
        "unused_rollouts": unused * schedule.options.rollouts_per_update,
        rule.name: measured,
    }


def early_end_sentence(stage: Stage, end: Metrics) -> str:
    """Return the progress message for a "stage_end" line."""
    rule, options = stage.config.stage_until.name, stage.schedule.options
    rollouts = stage.schedule.batches(stage.number) * options.rollouts_per_update
    return (
        f"stage {end['stage']} ends after {end['updates']} of {end['planned_updates']} updates: "
        f"{rule} {end[rule]:.3g}; {end['unused_rollouts']} of its {rollouts} "
        "rollouts are not trained on"
    )


def checkpoint_due(config: RunConfig, schedule: Schedule, update: int) -> bool:
    """Return whether the policy after `update` updates is saved, however long they took."""
    options = config.checkpoint
    stage_end = options.stage_end and update == schedule.first_update(schedule.stage_of(update))
    every = options.every > 0 and update % options.every == 0
    return every or stage_end or update == schedule.options.total_updates


def samples_due(config: RunConfig, stage: Stage, update: int) -> bool:
    """Return whether rollouts of update number `update` (from 1) are kept for the report."""
    every, staleness = config.samples.every, update - 1 - stage.first_update
    ends = (0, stage.schedule.planned_updates(stage.number) - 1)
    return every > 0 and (update % every == 0 or staleness in ends)


def keep_samples(
    run: OpenRun, stage: Stage, update: int, experience: Experience, watch: SampleCollector
) -> None:
    """Publish a few of an update's rollouts with what the objective did to each token."""
    samples = watch.chosen(experience.rollouts, experience.scores, SAMPLES, run.prompts.tokenizer)
    ids = {sample["problem_id"] for sample in samples}
    references = {problem.id: problem.answer for problem in run.problems if problem.id in ids}
    for sample in samples:
        sample["reference"] = references[sample["problem_id"]]
    document = {
        "update": update,
        "stage": stage.number,
        "staleness": update - 1 - stage.first_update,
        "samples": samples,
    }
    publish_json(run.folder.samples(update), with_sum(document))


def report_nonfinite(
    run: OpenRun, update: int, experience: Experience, line: Metrics, in_a_row: int
) -> None:
    """Record an update that was not applied because loss, gradient or learning rate was not finite.

    Raises RunStopped after too many in a row.
    """
    path = run.folder.nonfinite(update)
    groups = dict.fromkeys(rollout.group for rollout in experience.rollouts)
    document = {
        "update": update,
        "loss": str(line["loss"]),
        "grad_norm": str(line["grad_norm"]),
        "groups": [[key.problem_id, key.occurrence] for key in groups],
    }
    if run.ranks.first:
        publish_json(path, with_sum(document))
    run.progress.say(
        f"update {update} had loss {line['loss']}, gradient norm {line['grad_norm']} and learning "
        f"rate {line['lr']}, so it was not applied; its groups are in {path}"
    )
    if in_a_row >= _NONFINITE_LIMIT:
        raise RunStopped(
            f"{in_a_row} updates in a row had a non-finite loss or gradient; see {path.parent}; a "
            "lower --optimizer.lr (with --force) may help"
        )
