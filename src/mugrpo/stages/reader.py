"""What each update of a stage trains on, read from the stage's shards."""

from __future__ import annotations

import time

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.shards import RowReader, ShardSet, read_plan, rollout_from_row, score_from_row
from mugrpo.optimize.trainer import Experience
from mugrpo.rollouts.score import scored
from mugrpo.rollouts.statistics import refresh_metrics
from mugrpo.run.run import Run
from mugrpo.stages.logprobs import StoredLogprobs, logprobs_stage

_TICK = 0.05  # seconds between looks for a shard


class StageReader:
    """The rollouts, scores and stored logprobs of `stage`, an update's at a time.

    With `overlap` shards may still come: an update waits for its own.

    Raises UsageError where the stage was planned for fewer updates than it has.
    """

    def __init__(self, run: Run, stage: int) -> None:
        self._run = run
        self._stage = stage
        self._plan = read_plan(ShardSet(run.dir.plan(stage), "plan"))
        if len(self._plan) < run.schedule.batches(stage):
            raise UsageError(
                f"{run.dir.plan(stage)} has {len(self._plan)} batches, the schedule "
                f"{run.schedule.batches(stage)}: undo the change of schedule.stages until stage "
                f"{stage} is done"
            )
        self._judge = run.judge_of(stage)
        self._ready = set[int]()
        self._open()

    def _open(self) -> None:
        """See the shards that are there now."""
        run, stage = self._run, self._stage
        self._files = [
            ShardSet(run.dir.rollouts(stage), "rollouts"),
            ShardSet(run.dir.scores(stage), "scores"),
        ]
        self._rollouts, self._scores = map(RowReader, self._files)
        self._stored = StoredLogprobs(run, stage, self._plan)

    @property
    def behavior_reward(self) -> float | None:
        """The mean reward of the stage's rollouts, once all are there."""
        if not self._has({shard for batch in self._plan for shard, _ in batch}):
            return None
        reward: float | None = refresh_metrics(*self._files)["behavior_reward"]
        return reward

    def of_update(self, update: int) -> Experience:
        """What update number `update` (from 0) trains on."""
        places = self._plan[self._run.schedule.batch_of(update)]
        if self._run.config.overlap:
            wanted = (self._plan[batch] for batch in self._stored.batches_for(update))
            self._wait_for({shard for batch in wanted for shard, _ in batch})
        return Experience(
            [rollout_from_row(row) for row in self._rollouts.rows(places)],
            [score_from_row(row) for row in self._scores.rows(places)],
            self._stored.of_update(update),
        )

    def _has(self, shards: set[int]) -> bool:
        rollouts, scores = self._files
        return all(scored(rollouts, scores, shard, self._judge) for shard in shards)

    def _wait_for(self, shards: set[int]) -> None:
        """Until all ranks see `shards`, and the logprobs that they need are made; raises what
        stopped their generation."""
        run = self._run
        if shards <= self._ready:
            return
        while run.ranks.any(not self._has(shards)):
            run.check()
            over = run.alone and not run.generating
            self._open()
            if over and not self._has(shards):
                raise RunStopped(f"stage {self._stage} lacks scored shards among {sorted(shards)}")
            time.sleep(_TICK)
        if run.config.needs and run.ranks.size == 1:
            with run.progress.aside():
                logprobs_stage(run, self._stage)
            self._open()
        self._ready |= shards
