"""One stage of a run, as its phases see it."""

from __future__ import annotations

from dataclasses import dataclass

from mugrpo.config.run import RunConfig
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet
from mugrpo.rollouts.schedule import Schedule
from mugrpo.run.opened import OpenRun


@dataclass(frozen=True)
class Stage:
    """A stage: its number, its part of the schedule, and its shards on disk."""

    number: int
    schedule: Schedule
    folder: RunDir
    config: RunConfig
    judge: str  # fingerprint of everything that decides a score now

    @classmethod
    def of(cls, run: OpenRun, number: int, schedule: Schedule | None = None) -> Stage:
        """Return a stage of `run`, by default on the schedule as of the newest checkpoint."""
        return cls(number, schedule or run.schedule(), run.folder, run.config, run.judge)

    @property
    def first_update(self) -> int:
        """Return the number of updates before the stage, which its behavior policy has seen."""
        return self.schedule.first_update(self.number)

    @property
    def end(self) -> int:
        """Return the number of updates when the stage is over."""
        return self.schedule.first_update(self.number + 1)

    @property
    def groups(self) -> int:
        """Return the number of groups that its updates need."""
        return self.schedule.batches(self.number) * self.schedule.options.problems_per_update

    def shards(self, kind: str) -> ShardSet:
        """Return the shards of a kind: "rollouts", "scores", "plan", or logprobs' name."""
        return ShardSet(self.folder.shards(self.number, kind), kind)

    def heading(self, phase: str) -> str:
        """Return the heading of the progress line for a phase of the stage."""
        return f"stage {self.number} (of 0 to {self.schedule.stages - 1})  {phase}"

    def begun(self) -> bool:
        """Return whether a checkpoint holds any of its updates."""
        return self.folder.newest_update() > self.first_update

    def required_judge(self) -> str | None:
        """Return the fingerprint that scores must carry, or None if any score is accepted.

        Any score is accepted in a stage whose updates are all made, and in a run that uses another
        run's rollouts.
        """
        trained = self.end <= self.folder.newest_update()
        return None if trained or self.folder.origin.exists() else self.judge

    def reference_update(self) -> int:
        """Return the number of updates that its reference policy has seen."""
        return reference_update(self.schedule, self.config, self.number)


def reference_update(schedule: Schedule, config: RunConfig, stage: int) -> int:
    """Return the number of updates that the reference policy of `stage` has seen."""
    period = config.reference_period
    return schedule.first_update(stage - stage % period) if period else 0
