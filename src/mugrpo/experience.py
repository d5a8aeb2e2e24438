"""What each update of a stage trains on, read from the stage's shards."""

from __future__ import annotations

from mugrpo.errors import UsageError
from mugrpo.optimize.trainer import Experience
from mugrpo.other_policies import StoredLogprobs
from mugrpo.rollouts.statistics import refresh_metrics
from mugrpo.run import Run
from mugrpo.shards import RowReader, ShardSet, read_plan, rollout_from_row, score_from_row


class StageReader:
    """The rollouts, scores and stored logprobs of `stage`, an update's at a time.

    Raises UsageError where the stage was planned for fewer updates than it has.
    """

    def __init__(self, run: Run, stage: int) -> None:
        self._run = run
        rollouts = ShardSet(run.dir.rollouts(stage), "rollouts")
        scores = ShardSet(run.dir.scores(stage), "scores")
        self.behavior_reward = refresh_metrics(rollouts, scores)["behavior_reward"]
        self._rollouts, self._scores = RowReader(rollouts), RowReader(scores)
        self._plan = read_plan(ShardSet(run.dir.plan(stage), "plan"))
        if len(self._plan) < run.schedule.batches(stage):
            raise UsageError(
                f"{run.dir.plan(stage)} has {len(self._plan)} batches, the schedule "
                f"{run.schedule.batches(stage)}: undo the change of schedule.stages until stage "
                f"{stage} is done"
            )
        self._stored = StoredLogprobs(run, stage, self._plan)

    def of_update(self, update: int) -> Experience:
        """What update number `update` (from 0) trains on."""
        places = self._plan[self._run.schedule.batch_of(update)]
        return Experience(
            [rollout_from_row(row) for row in self._rollouts.rows(places)],
            [score_from_row(row) for row in self._scores.rows(places)],
            self._stored.of_update(update),
        )
