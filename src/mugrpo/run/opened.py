"""An open run: what every stage needs to know. Reading its attributes never starts any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import Interrupted
from mugrpo.disk.records import Problem, TrainerState
from mugrpo.disk.run_dir import RunDir
from mugrpo.environments.base import Environments
from mugrpo.environments.pool import environments_of
from mugrpo.model.loading import Vocabulary
from mugrpo.processes.lifetime import StopFlag
from mugrpo.processes.ranks import ALONE, Ranks
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.schedule import Schedule, schedule_of
from mugrpo.rollouts.score import Scorer
from mugrpo.run.progress import Progress
from mugrpo.tasks.base import Task


@dataclass(frozen=True)
class OpenRun:
    """A run whose folder is locked, whose config is checked and whose problems are read.

    `open_run` yields it. It holds no model: each phase creates the `Weights`, `Sampling` or
    `Training` that it uses.
    """

    folder: RunDir
    config: RunConfig
    task: Task
    problems: Sequence[Problem]  # to train on
    eval_problems: Sequence[Problem]
    prompts: PromptEncoder  # holds the tokenizer too
    vocabulary: Vocabulary
    judge: str  # fingerprint of everything that decides a score
    progress: Progress
    stop: StopFlag
    ranks: Ranks = ALONE

    def schedule(self) -> Schedule:
        """Return the schedule as of the newest checkpoint, with the stages that ended early."""
        starts = self.folder.stage_starts(self.folder.newest_update())
        return schedule_of(self.config, self.problems, starts)

    def state(self, update: int, stage: int | None) -> TrainerState:
        """Return what reward functions learn about responses of the policy after `update`."""
        return TrainerState(update, self.config.schedule.total_updates, stage)

    def scorer(self, problems: Sequence[Problem], stage: int | None) -> Scorer:
        """Return a scorer for rollouts of `problems`, of a stage or, if None, an evaluation."""
        return Scorer(
            self.task,
            problems,
            self.prompts.tokenizer,
            self.config.rewards,
            max_new_tokens=self.config.rollouts.max_new_tokens,
            judge=self.judge,
            state=self.state(0, stage),
            check=self.stop.check,
        )

    def environments(self, number: int) -> Environments:
        """Return the environments of the engine `number`, which the caller closes.

        The config must have some.
        """
        log = self.folder.log(f"environment-{number}")
        return environments_of(self.config, log=log)

    def check(self) -> None:
        """Raise Interrupted if the run was asked to stop. All ranks raise at the same update."""
        if self.ranks.alone:
            self.stop.check()
            return
        asks = self.ranks.driven and self.ranks.first  # one look at a shared folder is enough
        requested = asks and self.folder.stop_request.exists()
        if self.ranks.any(requested or self.stop.signal_name is not None):
            raise Interrupted("stopped with the other ranks")
