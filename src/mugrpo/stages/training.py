"""The trainer that a phase makes updates with, and its checkpoints."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from mugrpo.disk.publishing import fsync, full_disk_explained
from mugrpo.disk.run_dir import Handover
from mugrpo.optimize.checkpoint import require_finite, save_checkpoint
from mugrpo.optimize.trainer import Trainer
from mugrpo.run.opening import OpenRun
from mugrpo.run.weights import Weights, handover_dtype
from mugrpo.stages.stage import reference_update


class Training:
    """The trainer of a run's updates, created when it is first needed."""

    def __init__(self, run: OpenRun, weights: Weights) -> None:
        self.trainer: Trainer | None = None
        self.unsaved_seconds = 0.0  # of updates that no checkpoint holds
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

    def sleep(self) -> None:
        """Leave the GPUs to engines that share them, see `Trainer.sleep`. What needs them wakes."""
        self.weights.sleep()
        if self.trainer is not None:
            self.trainer.sleep()

    def _fresh(self) -> Trainer:
        policy = self.weights.load()
        policy.wake()
        trainer = Trainer(policy, self._run.config, self.weights.budget)
        if not trainer.share:
            self._run.progress.say(
                "each response is computed with its own copy of the prompt: the model's "
                "architecture does not allow shared prompts"
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
        return trainer.update > self._run.folder.saved_update()

    def overdue(self) -> bool:
        """Return whether too much would be lost if the run was killed. All ranks must ask."""
        minutes, ranks = self._run.config.checkpoint.minutes, self._run.ranks
        return bool(minutes) and ranks.any(self.unsaved_seconds > 60 * minutes)

    @property
    def stays(self) -> bool:
        """Whether the ranks keep updates in memory that no checkpoint holds, from order to order.

        They cannot if a cluster may start them again, or if they load other weights to compute
        their logprobs. An engine in the process that drives the run needs a checkpoint.
        """
        config = self._run.config
        return not (config.backend.clustered or config.needs or config.engine_in_process)

    @property
    def hands_over_model(self) -> bool:
        """Whether the ranks write files for engines, rather than leave them a checkpoint's."""
        config = self._run.config
        if config.backend.clustered or config.engine_in_process:
            return False
        return self.unsaved() or handover_dtype(config) is not None

    def save(self, *, temporary: bool = False, rests: bool = False) -> None:
        """Begin to write a checkpoint, unless all updates are saved. The metrics are durable then.

        A `temporary` one is removed once there is a newer one. If no update follows, the trainer
        `rests`: what it moves to host memory is what is written, so it is copied only once.
        """
        run, trainer = self._run, self.trainer
        if trainer is None or not self.unsaved():
            return
        began = time.monotonic()
        stage = run.config.schedule.stage_of(trainer.update - 1)
        if run.ranks.first and run.folder.metrics.exists():
            fsync(run.folder.metrics)
        needed = {reference_update(run.config, s) for s in (stage, stage + 1)}
        needed |= {run.config.schedule.first_update(stage)}
        save_checkpoint(
            trainer,
            run.folder,
            keep=run.config.checkpoint.keep,
            needed=needed,
            temporary=temporary,
            rests=rests,
        )
        self.unsaved_seconds = 0.0
        self._checkpoint_seconds += time.monotonic() - began

    def hand_over(self) -> None:
        """Write the model alone, for engines, without a checkpoint. All ranks must call this."""
        began = time.monotonic()
        run, trainer = self._run, self.trainer
        assert trainer is not None
        require_finite(trainer, run.folder)
        folder = Path(run.ranks.from_first(self._new_folder() if run.ranks.first else None))
        with full_disk_explained(folder):
            trainer.policy.save(folder, dtype=handover_dtype(run.config))
        run.ranks.wait()
        run.folder.handover = Handover(trainer.update, folder)
        self._checkpoint_seconds += time.monotonic() - began

    def _new_folder(self) -> str:
        """Return a new folder for the model, and remove those of earlier ones but the last."""
        run, trainer = self._run, self.trainer
        assert trainer is not None
        models = run.folder.ranks / "models"
        for old in sorted(models.glob("update-*"))[:-1]:
            shutil.rmtree(old)  # an engine may start from the last
        folder = models / f"update-{trainer.update:06d}"
        folder.mkdir(parents=True)
        return str(folder)
