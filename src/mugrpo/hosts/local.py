"""The host that computes in this process, with engines in it or beside it."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.publishing import fsync, full_disk_explained
from mugrpo.disk.records import Rollout
from mugrpo.disk.run_dir import Handover
from mugrpo.hosts.canary import check_first_update, checked_refresh
from mugrpo.hosts.engines import Engines
from mugrpo.hosts.host import Generation, Refreshed, needs_engines
from mugrpo.hosts.reader import StageReader, publish_logprobs, seconds_once
from mugrpo.hosts.updates import keep_samples, report_nonfinite, samples_due
from mugrpo.hosts.weights import Weights, handover_dtype
from mugrpo.optimize.checkpoint import require_finite, save_checkpoint
from mugrpo.optimize.samples import Recorder
from mugrpo.optimize.trainer import Trainer
from mugrpo.rollouts.schedule import Draw
from mugrpo.run.opening import OpenRun
from mugrpo.run.stage import Stage, reference_update

_TICK = 0.05  # seconds between looks for a shard


class LocalHost:
    """Computes in this process: the trainer, its checkpoints, and the engines. See `Host`.

    A rank is one, too, and shares the policy with the others; it starts no engines.
    """

    def __init__(self, run: OpenRun) -> None:
        self.weights = Weights(run)
        self.trainer: Trainer | None = None
        self._run = run
        self._engines = Engines(run, self.weights)
        self._unsaved_seconds = 0.0  # of updates that no checkpoint holds
        self._checkpoint_seconds = 0.0  # since the last metrics line

    def load(self) -> None:
        """See `Host`."""
        self._run.progress.say(f"loading the model {self._run.config.model.path}")
        self.weights.load()  # the canary uses the model that trains

    def engines(self, update: int, groups: Sequence[Draw], stage: str) -> Refreshed:
        """See `Host`."""
        self._engines.start()  # first: it loads the policy if an engine samples from it
        if self.weights.policy is not None:
            self.weights.at(update)
        self.sleep_trainer()
        logprobs = self.weights.logprobs_for_engines
        return checked_refresh(self._run, self._engines, update, groups, stage, logprobs)

    def logprobs(self, update: int, rollouts: Sequence[Rollout]) -> list[NDArray[np.float32]]:
        """See `Host`."""
        return self.weights.logprobs(update, rollouts)

    def update(
        self,
        stage: Stage,
        until: int,
        generation: Generation | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """See `Host`. A rank `waits` for shards, too. Raises RunStopped after too many updates in
        a row that were not applied, and as `check_first_update` does.
        """
        run, first = self._run, stage.first_update
        start = max(self.made(), first)
        if not needs_engines(generation):
            self.sleep()
        trainer, reader = self._trainer_at(start), StageReader(stage, self.logprobs)
        spent = seconds_once(stage) if start == first else 0.0
        heading = stage.heading("optimize")
        run.progress.begin(heading, "updates", stage.end - first, start - first)
        while trainer.update < until:
            run.check()
            began = time.monotonic()
            if generation or waits:
                self._wait_for(reader, trainer.update, generation)
            experience = reader.of_update(trainer.update)
            line: dict[str, Any] = {"stage": stage.number, "staleness": trainer.update - first}
            line |= {"time/read": time.monotonic() - began, "time/logprobs": spent}
            line["time/checkpoint"], self._checkpoint_seconds = self._checkpoint_seconds, 0.0
            spent = 0.0
            recorder = Recorder() if samples_due(stage, trainer.update + 1) else None
            line |= trainer.step(experience, recorder)
            if line["staleness"] == 0:  # before anything of it is kept
                check_first_update(run, stage, line)
            if run.ranks.first:
                run.journal.append("update", trainer.update, **line)
                if recorder is not None:
                    keep_samples(run, stage, trainer.update, experience, recorder)
            if line["skipped"]:
                report_nonfinite(run, experience, line, trainer)
            self._unsaved_seconds += line["time/update"]
            if (due := run.config.checkpoint_due(trainer.update)) or self._overdue():
                self.save(temporary=not due, sleeps=trainer.update == until)
            run.progress.advance(1, line["tokens"])
        run.progress.end()

    def save(self, *, temporary: bool = False, sleeps: bool = False) -> None:
        """See `Host`. Begins to write; the metrics are durable then.

        If no update follows, the trainer `sleeps`: what it moves to host memory is what is
        written, so it is copied only once.
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
            sleeps=sleeps,
        )
        self._unsaved_seconds = 0.0
        self._checkpoint_seconds += time.monotonic() - began

    def sleep(self) -> None:
        """See `Host`."""
        self._engines.sleep()

    def sleep_trainer(self) -> None:
        """Leave the GPUs to engines that share them, see `Trainer.sleep`. What needs them wakes."""
        self.weights.sleep()
        if self.trainer is not None:
            self.trainer.sleep()

    def close(self) -> None:
        """See `Host`."""
        self._engines.close()

    def load_trainer(self) -> None:
        """Load the trainer in its newest state."""
        self._trainer_at(self._run.folder.newest_update())

    def made(self) -> int:
        """Return the number of updates made, including those not yet saved."""
        if self.trainer is not None and self.unsaved():
            return self.trainer.update
        return self._run.folder.newest_update()

    def unsaved(self) -> bool:
        """Return whether the trainer has made updates that no checkpoint holds."""
        trainer = self.trainer
        if trainer is None or trainer.update != trainer.policy.update:
            return False
        return trainer.update > self._run.folder.saved_update()

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

    def _trainer_at(self, update: int) -> Trainer:
        """Return the trainer in its state after `update` updates."""
        trainer = self.trainer
        if trainer and trainer.update == trainer.policy.update == update:
            return trainer
        if update == 0:
            self.weights.at(0)
            trainer = None  # a fresh optimizer
        self.trainer = trainer = trainer or self._fresh_trainer()
        if update:
            trainer.load(Path(self.weights.path(update)))
        return trainer

    def _fresh_trainer(self) -> Trainer:
        policy = self.weights.load()
        policy.wake()
        trainer = Trainer(policy, self._run.config, self.weights.budget)
        if not trainer.share:
            self._run.progress.say(
                "each response is computed with its own copy of the prompt: the model's "
                "architecture does not allow shared prompts"
            )
        return trainer

    def _wait_for(self, reader: StageReader, update: int, generation: Generation | None) -> None:
        """Wait until all ranks see the scored shards that an update reads.

        Then compute the logprobs of other policies that it needs. A rank is generated for by the
        run that started it. Raises the error that ended generation, or RunStopped if it ended
        without these shards.
        """
        run, stage = self._run, reader.stage
        while run.ranks.any(not reader.ready(update)):
            run.check()
            ended = not run.ranks.follows and not (generation and generation.running())
            if ended and not reader.ready(update):
                raise RunStopped(f"stage {stage.number} lacks scores that update {update} reads")
            time.sleep(_TICK)
        if run.config.needs and run.ranks.size == 1:
            with run.progress.aside():
                publish_logprobs(stage, self.logprobs, run.progress)

    def _overdue(self) -> bool:
        """Return whether too much would be lost if the run was killed. All ranks must ask."""
        minutes, ranks = self._run.config.checkpoint.minutes, self._run.ranks
        return bool(minutes) and ranks.any(self._unsaved_seconds > 60 * minutes)

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
