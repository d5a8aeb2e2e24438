"""An open run: what every stage needs to know, and nothing that acts by being looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import Interrupted
from mugrpo.disk.records import Problem
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.vocabulary import Vocabulary
from mugrpo.processes.ranks import ALONE, Ranks
from mugrpo.processes.stopping import StopFlag
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.schedule import Schedule
from mugrpo.rollouts.score import Scorer
from mugrpo.run.progress import Progress
from mugrpo.tasks.base import Task


@dataclass(frozen=True)
class OpenRun:
    """A run whose folder is locked, whose config is settled and whose problems are read.

    `open_run` makes it. No model is in it: `Weights`, `Sampling` and `Training` are made by the
    phase that uses them.
    """

    folder: RunDir
    config: RunConfig
    task: Task
    problems: Sequence[Problem]  # to train on
    eval_problems: Sequence[Problem]
    prompts: PromptEncoder  # and the tokenizer
    vocabulary: Vocabulary
    judge: str  # the fingerprint of what judges rollouts
    progress: Progress
    stop: StopFlag
    ranks: Ranks = ALONE

    def schedule(self) -> Schedule:
        """Return the schedule as it stands after the newest checkpoint, early ends included."""
        starts = self.folder.stage_starts(self.folder.newest_update())
        return Schedule(self.config.schedule, len(self.problems), self.config.seed, starts)

    def scorer(self, problems: Sequence[Problem]) -> Scorer:
        """Return what scores rollouts of `problems`."""
        return Scorer(
            self.task,
            problems,
            self.prompts.tokenizer,
            self.config.rewards,
            max_new_tokens=self.config.rollouts.max_new_tokens,
            judge=self.judge,
            check=self.stop.check,
        )

    def check(self) -> None:
        """Raise Interrupted if the run is asked to stop. All ranks raise at the same update."""
        if self.ranks.alone:
            self.stop.check()
            return
        asked = self.ranks.driven and self.folder.stop_request.exists()
        if self.ranks.any(asked or self.stop.signal_name is not None):
            raise Interrupted("stopped with the other ranks")
