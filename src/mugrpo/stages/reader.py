"""What each update of a stage trains on, read from the stage's shards."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mugrpo.disk.errors import UsageError
from mugrpo.disk.plans import Place, read_plan
from mugrpo.disk.shards import rollout_from_row, score_from_row
from mugrpo.optimize.experience import Experience
from mugrpo.rollouts.score import scored
from mugrpo.rollouts.statistics import refresh_metrics
from mugrpo.stages.logprobs import Compute, StoredLogprobs
from mugrpo.stages.rows import Rows
from mugrpo.stages.stage import Stage


class StageReader:
    """The rollouts, scores and stored logprobs of a stage, read for one update at a time.

    Those that an update replays come from the shards of earlier stages. The reader sees the shards
    that existed when it was last opened. `compute` returns logprobs of other policies. Raises
    UsageError if the stage's plan has fewer batches than the schedule.
    """

    def __init__(self, stage: Stage, compute: Compute) -> None:
        self.stage = stage
        self._compute = compute
        self._plan = read_plan(stage.shards("plan"), stage.number)
        batches = stage.schedule.batches(stage.number)
        if len(self._plan) < batches:
            raise UsageError(
                f"{stage.shards('plan').folder} has {len(self._plan)} batches, the schedule "
                f"{batches}: undo the change of schedule.stages until stage {stage.number} is over"
            )
        self._shards = {place.shard for batch in self._plan for place in self._own(batch)}
        self._judge = stage.required_judge()
        self.open()

    def open(self) -> None:
        """Read the manifests again, to see the shards that exist now."""
        self._rollouts, self._scores = (Rows(self.stage, kind) for kind in ("rollouts", "scores"))
        number = self.stage.number
        self._files = self._rollouts.shards(number), self._scores.shards(number)
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
            [rollout_from_row(row) for row in self._rollouts.at(places)],
            [score_from_row(row) for row in self._scores.at(places)],
            self._stored.of_update(update),
            replayed=len(places) - len(self._own(places)),
        )

    def replay_metrics(self, update: int) -> dict[str, float | None]:
        """Return what update number `update` (from 0) replays, or {} in a run without replay.

        replayed_share      of its rollouts
        replayed_staleness  mean number of updates since the policy of these rollouts
        """
        places = self._plan[self.stage.schedule.batch_of(update)]
        others = [place for place in places if place.stage != self.stage.number]
        if not (others or self.stage.config.replay.share):
            return {}
        ages = [update - self.stage.schedule.first_update(place.stage) for place in others]
        mean = sum(ages) / len(ages) if ages else None
        return {"replayed_share": len(others) / len(places), "replayed_staleness": mean}

    def shards_of(self, update: int) -> set[int]:
        """Return the stage's shards that update number `update` (from 0) reads.

        If it computes logprobs of more rollouts, theirs are among them.
        """
        batches = (self._plan[batch] for batch in self._stored.batches_for(update))
        return {place.shard for batch in batches for place in self._own(batch)}

    def _own(self, places: Sequence[Place]) -> list[Place]:
        """Return the places that are in the stage's own shards."""
        return [place for place in places if place.stage == self.stage.number]

    def has(self, shards: Collection[int]) -> bool:
        """Return whether these shards exist and are scored by the required judge."""
        rollouts, scores = self._files
        return all(scored(rollouts, scores, shard, self._judge) for shard in shards)
