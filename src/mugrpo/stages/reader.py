"""What each update of a stage trains on, read from the stage's shards."""

from __future__ import annotations

from collections.abc import Collection

from mugrpo.disk.errors import UsageError
from mugrpo.disk.plans import read_plan
from mugrpo.disk.shards import RowReader, rollout_from_row, score_from_row
from mugrpo.optimize.experience import Experience
from mugrpo.rollouts.score import scored
from mugrpo.rollouts.statistics import refresh_metrics
from mugrpo.stages.logprobs import Compute, StoredLogprobs
from mugrpo.stages.stage import Stage


class StageReader:
    """The rollouts, scores and stored logprobs of a stage, read for one update at a time.

    It sees the shards that existed when it was last opened. `compute` returns logprobs of other
    policies. Raises UsageError if the stage's plan has fewer batches than the schedule.
    """

    def __init__(self, stage: Stage, compute: Compute) -> None:
        self.stage = stage
        self._compute = compute
        self._plan = read_plan(stage.shards("plan"))
        batches = stage.schedule.batches(stage.number)
        if len(self._plan) < batches:
            raise UsageError(
                f"{stage.shards('plan').folder} has {len(self._plan)} batches, the schedule "
                f"{batches}: undo the change of schedule.stages until stage {stage.number} is over"
            )
        self._shards = {place.shard for batch in self._plan for place in batch}
        self._judge = stage.required_judge()
        self.open()

    def open(self) -> None:
        """Read the manifests again, to see the shards that exist now."""
        self._files = self.stage.shards("rollouts"), self.stage.shards("scores")
        self._rollouts, self._scores = map(RowReader, self._files)
        self._stored = StoredLogprobs(self.stage, self._plan, self._compute)

    def behavior_reward(self) -> float | None:
        """Return the mean reward of the stage's rollouts, or None if some are not scored yet."""
        if not self.has(self._shards):
            return None
        reward: float | None = refresh_metrics(*self._files)["behavior_reward"]
        return reward

    def of_update(self, update: int) -> Experience:
        """Return what update number `update` (from 0) trains on."""
        places = self._plan[self.stage.schedule.batch_of(update)]
        return Experience(
            [rollout_from_row(self._rollouts.row(*place)) for place in places],
            [score_from_row(self._scores.row(*place)) for place in places],
            self._stored.of_update(update),
        )

    def shards_of(self, update: int) -> set[int]:
        """Return the stage's shards that update number `update` (from 0) reads.

        If it computes logprobs of more rollouts, theirs are among them.
        """
        batches = (self._plan[batch] for batch in self._stored.batches_for(update))
        return {place.shard for batch in batches for place in batch}

    def has(self, shards: Collection[int]) -> bool:
        """Return whether these shards exist and are scored by the required judge."""
        rollouts, scores = self._files
        return all(scored(rollouts, scores, shard, self._judge) for shard in shards)
