"""The trainer that a phase makes updates with, and its checkpoints."""

from __future__ import annotations

import time
from pathlib import Path

from mugrpo.disk.metrics import MetricsLog
from mugrpo.optimize.checkpoint import save_checkpoint
from mugrpo.optimize.trainer import Trainer
from mugrpo.rollouts.schedule import Schedule
from mugrpo.run.opened import OpenRun
from mugrpo.run.weights import Weights
from mugrpo.stages.stage import reference_update


class Training:
    """The trainer of a run's updates, created when it is first needed.

    `schedule` is up to date: it includes the stages that have ended early so far.
    """

    def __init__(self, run: OpenRun, weights: Weights, schedule: Schedule) -> None:
        self.schedule = schedule
        self.trainer: Trainer | None = None
        self._checkpoint_seconds = 0.0
        self._run = run
        self.weights = weights

    def at(self, update: int) -> Trainer:
        """Return the trainer in its state after `update` updates."""
        trainer = self.trainer
        if trainer and trainer.update == trainer.policy.update == update:
            return trainer
        if update == 0:
            self.weights.at(0)
            trainer = None  # a fresh optimizer
        self.trainer = trainer = trainer or self._fresh()
        if update:
            trainer.load(Path(self.weights.path(update)))
        return trainer

    def _fresh(self) -> Trainer:
        trainer = Trainer(self.weights.load(), self._run.config, self.weights.budget)
        if self._run.config.optimizer.share_prompts and not trainer.share:
            self._run.progress.say(
                "each response is computed with its own copy of the prompt: the model's "
                "architecture or gradient checkpointing does not allow shared prompts"
            )
        return trainer

    def release(self) -> None:
        """Drop the trainer and all models, to leave their memory to other processes."""
        self.trainer = None
        self.weights.release()

    def take_checkpoint_seconds(self) -> float:
        """Return the seconds spent on checkpoints since the last call."""
        seconds, self._checkpoint_seconds = self._checkpoint_seconds, 0.0
        return seconds

    def unsaved(self) -> bool:
        """Return whether the trainer has made updates that no checkpoint holds."""
        trainer = self.trainer
        if trainer is None or trainer.update != trainer.policy.update:
            return False
        return trainer.update > self._run.folder.newest_update()

    def save(self, metrics: MetricsLog) -> None:
        """Begin to write a checkpoint of the trainer, after syncing the metrics up to it."""
        began = time.monotonic()
        run, trainer, schedule = self._run, self.trainer, self.schedule
        assert trainer is not None
        if run.ranks.first:
            metrics.sync()
        stage = schedule.stage_of(trainer.update - 1)
        references = {reference_update(schedule, run.config, s) for s in (stage, stage + 1)}
        save_checkpoint(
            trainer,
            run.folder,
            starts=schedule.starts,
            keep=run.config.checkpoint.keep,
            needed={schedule.first_update(stage), *references},
        )
        if not run.config.checkpoint.beside_training:
            run.folder.settle()
        self._checkpoint_seconds += time.monotonic() - began
