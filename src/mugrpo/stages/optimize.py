"""The half of a stage that makes its updates, from the shards on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.metrics import MetricsLog
from mugrpo.disk.publishing import publish_json, with_sum
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.samples import Recorder
from mugrpo.run.opening import OpenRun
from mugrpo.stages.evaluate import SAMPLES
from mugrpo.stages.logprobs import Compute, StageReader, seconds_once
from mugrpo.stages.stage import Stage
from mugrpo.stages.training import Training

Metrics = dict[str, Any]

_NONFINITE_LIMIT = 3  # updates in a row that are not applied: one may be an overflow
_KEPT = 16  # rollouts of every such update are kept


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
    spent = seconds_once(stage) if start == first else 0.0  # with overlap, `arrived` spends them
    run.progress.begin(stage.heading("optimize"), "updates", stage.end - first, start - first)
    end = stage.end if until is None else min(stage.end, until)
    while trainer.update < end:
        run.check()
        began = time.monotonic()
        arrived(reader, trainer.update)
        experience = reader.of_update(trainer.update)
        line: Metrics = {"stage": stage.number, "staleness": trainer.update - first}
        line["time/read"] = time.monotonic() - began
        line["time/logprobs"], spent = spent, 0.0
        line["time/checkpoint"] = training.take_checkpoint_seconds()
        recorder = Recorder() if samples_due(stage, trainer.update + 1) else None
        line |= trainer.step(experience, recorder)
        update = trainer.update
        if run.ranks.first:
            metrics.append("update", update, **line)
            if recorder is not None:
                keep_samples(run, stage, update, experience, recorder)
        if line["skipped"]:
            report_nonfinite(run, update, experience, line, trainer.nonfinite_in_a_row)
        training.unsaved_seconds += line["time/update"]
        if config.checkpoint_due(update):
            training.save(rests=update == end)
        elif training.overdue():
            training.save(temporary=True, rests=update == end)
        run.progress.advance(1, line["tokens"])
        between(update)
    run.progress.end()


def samples_due(stage: Stage, update: int) -> bool:
    """Return whether rollouts of update number `update` (from 1) are kept for the report."""
    return update % _KEPT == 0 or update in (stage.first_update + 1, stage.end)


def keep_samples(
    run: OpenRun, stage: Stage, update: int, experience: Experience, recorder: Recorder
) -> None:
    """Publish a few of an update's rollouts with what the objective did to each token."""
    samples = recorder.chosen(
        experience.rollouts, experience.scores, SAMPLES, run.prompts.tokenizer
    )
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
