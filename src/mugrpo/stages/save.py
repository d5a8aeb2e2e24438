"""What is saved of a run's progress, and when: checkpoints, samples, updates not applied."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mugrpo.disk.errors import Interrupted, RunStopped
from mugrpo.disk.publishing import publish_json
from mugrpo.optimize.checkpoint import save_checkpoint
from mugrpo.optimize.samples import SampleCollector
from mugrpo.optimize.trainer import Experience
from mugrpo.run.run import Run


def checkpoint_due(run: Run, update: int) -> bool:
    options, schedule = run.config.checkpoint, run.schedule
    stage_end = options.stage_end and update == schedule.first_update(schedule.stage_of(update))
    every = options.every > 0 and update % options.every == 0
    return every or stage_end or update == schedule.options.total_updates


@contextmanager
def saved_when_interrupted(run: Run) -> Iterator[None]:
    """A signal within the block leaves a checkpoint of every update made before it."""
    try:
        yield
    except Interrupted:
        if run.trained and run.trainer.update > run.newest_update:
            checkpoint(run)
        raise


def checkpoint(run: Run) -> None:
    """Save the trainer and every metric up to it."""
    began = time.monotonic()
    if run.ranks.first:
        run.metrics.sync()
    stage = run.schedule.stage_of(run.trainer.update - 1)
    needed = {run.schedule.first_update(stage)}
    needed |= {run.reference_update(stage), run.reference_update(stage + 1)}
    save_checkpoint(
        run.trainer,
        run.dir,
        starts=run.schedule.starts,
        keep=run.config.checkpoint.keep,
        needed=needed,
    )
    run.checkpoint_seconds += time.monotonic() - began


def samples_due(run: Run, update: int) -> bool:
    """Whether rollouts of update number `update` (from 1) are kept to be looked at."""
    every, staleness = run.config.samples.every, run.schedule.staleness(update - 1)
    ends = (0, run.schedule.planned_updates(run.schedule.stage_of(update - 1)) - 1)
    return every > 0 and (update % every == 0 or staleness in ends)


def keep_samples(run: Run, experience: Experience, collector: SampleCollector) -> None:
    update = run.trainer.update
    samples = collector.chosen(
        experience.rollouts,
        experience.scores,
        run.config.samples.count,
        run.encode.tokenizer,
    )
    document = {
        "update": update,
        "stage": run.schedule.stage_of(update - 1),
        "staleness": run.schedule.staleness(update - 1),
        "samples": samples,
    }
    publish_json(run.dir.samples(update), document)


def report_nonfinite(run: Run, experience: Experience, metrics: dict[str, Any]) -> None:
    """Keep what was in an update that was not applied; stop after too many in a row."""
    trainer = run.trainer
    path = run.dir.nonfinite(trainer.update)
    groups = dict.fromkeys(rollout.group for rollout in experience.rollouts)
    document = {
        "update": trainer.update,
        "loss": str(metrics["loss"]),
        "grad_norm": str(metrics["grad_norm"]),
        "groups": [[key.problem_id, key.occurrence] for key in groups],
    }
    if run.ranks.first:
        publish_json(path, document)
    run.progress.say(
        f"update {trainer.update} had loss {metrics['loss']} and gradient norm "
        f"{metrics['grad_norm']}; it was not applied, its groups are in {path}"
    )
    if trainer.nonfinite_in_a_row >= run.config.optimizer.nonfinite_limit:
        raise RunStopped(
            f"{trainer.nonfinite_in_a_row} updates in a row had a non-finite loss or gradient; "
            f"see {path.parent}; a lower --optimizer.lr (with --force) may help"
        )
