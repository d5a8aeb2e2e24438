"""When a run's progress is saved: by updates, at the ends of stages, and on a signal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from mugrpo.errors import Interrupted
from mugrpo.optimize.checkpoints import save_checkpoint
from mugrpo.run import Run


def checkpoint_due(run: Run, update: int) -> bool:
    options, schedule = run.config.checkpoint, run.config.schedule
    stage_end = options.stage_end and update % schedule.updates_per_stage == 0
    every = options.every > 0 and update % options.every == 0
    return every or stage_end or update == schedule.total_updates


@contextmanager
def saved_when_interrupted(run: Run) -> Iterator[None]:
    """A signal within the block leaves a checkpoint of every update made before it."""
    try:
        yield
    except Interrupted:
        trained = "trainer" in run.__dict__ and run.trainer.update == run.policy.update
        if trained and run.trainer.update > run.newest_update:
            checkpoint(run)
        raise


def checkpoint(run: Run) -> float:
    """Save the trainer and every metric up to it; returns the seconds it took."""
    began = time.monotonic()
    run.metrics.sync()
    stage = run.schedule.stage_of(run.trainer.update - 1)
    needed = {run.schedule.first_update(stage)}
    save_checkpoint(run.trainer, run.dir, keep=run.config.checkpoint.keep, needed=needed)
    return time.monotonic() - began
