"""Logprobs that an objective wants of other policies, computed once and kept beside the rollouts.

trainer_behavior_logprobs   of the behavior policy through the trainer: once a stage
reference_logprobs          of the reference policy: once a stage
proximal_logprobs           of the proximal policy: once every proximal_period updates
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.errors import UsageError
from mugrpo.disk.shards import (
    RowReader,
    ShardSet,
    read_logprobs,
    read_rollouts,
    rollout_from_row,
    write_logprobs,
)
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.run.run import Run

_ONCE_A_STAGE = ("trainer_behavior_logprobs", "reference_logprobs")
_PROXIMAL = "proximal_logprobs"

Places = list[tuple[int, int]]  # (shard, row) of rollouts


def logprobs_stage(run: Run, stage: int) -> None:
    """Publish the stage's missing shards of logprobs that are needed once a stage."""
    rollouts = ShardSet(run.dir.rollouts(stage), "rollouts")
    for name in [name for name in run.config.needs if name in _ONCE_A_STAGE]:
        kept = ShardSet(run.dir.logprobs(stage, name), name)
        first_update = run.schedule.first_update(stage)
        reference = run.reference_update(stage)
        update = reference if name == "reference_logprobs" else first_update
        missing = [s for s in rollouts.numbers() if not _of_these(rollouts, kept, s, update)]
        if not missing:
            continue
        run.rest_engines()
        policy = run.frozen_policy(update)
        run.progress.begin(f"stage {stage + 1}  {name}", "shards", len(missing))
        for shard in missing:
            made = list(read_rollouts(rollouts, shard))
            found = rollout_logprobs(policy, made, run.config, run.budget, run.stop.check)
            sha256 = rollouts.entry(shard)["sha256"]
            write_logprobs(kept, shard, found, rollouts_sha256=sha256, policy_step=update)
            run.progress.advance(1)
        run.progress.end()


def require_logprobs(run: Run, stage: int) -> None:
    """Raise UsageError where ranks would have to make logprobs, which they cannot."""
    rollouts = ShardSet(run.dir.rollouts(stage), "rollouts")
    lacking = [
        name
        for name in run.config.needs
        if name in _ONCE_A_STAGE
        and set(rollouts.numbers()) - set(ShardSet(run.dir.logprobs(stage, name), name).numbers())
    ]
    if run.ranks.size > 1 and run.config.proximal_period > 1:
        lacking.append(_PROXIMAL)
    if lacking:
        raise UsageError(
            f"the updates need {lacking[0]}, which several ranks cannot make; start the run with "
            f"`mugrpo train {run.dir.root} --distributed.processes N`, or use one process"
        )


class StoredLogprobs:
    """Reads, and for the proximal policy makes, what the updates of `stage` need."""

    def __init__(self, run: Run, stage: int, plan: list[Places]) -> None:
        self._run = run
        self._stage = stage
        self._plan = plan
        self._rollouts = RowReader(ShardSet(run.dir.rollouts(stage), "rollouts"))
        self._once = {
            name: RowReader(ShardSet(run.dir.logprobs(stage, name), name))
            for name in run.config.needs
            if name in _ONCE_A_STAGE
        }
        self._period = run.config.proximal_period
        self._proximal = _PROXIMAL in run.config.needs and self._period > 1
        self._kept = ShardSet(run.dir.logprobs(stage, _PROXIMAL), _PROXIMAL)

    def of_update(self, update: int) -> dict[str, list[NDArray[np.float32]]]:
        """Name -> the logprobs of each rollout of update number `update` (from 0).

        A proximal policy that is renewed at every update is the policy itself: nothing is kept.
        """
        batch = self._run.schedule.batch_of(update)
        found = {
            name: [row["logprobs"] for row in reader.rows(self._plan[batch])]
            for name, reader in self._once.items()
        }
        if self._proximal:
            found[_PROXIMAL] = self._of_proximal(update, batch)
        return found

    def batches_for(self, update: int) -> list[int]:
        """The batches whose rollouts it takes: the update's own, or those of its period."""
        if not self._proximal:
            return [self._run.schedule.batch_of(update)]
        period = self._run.schedule.staleness(update) // self._period
        return list(dict.fromkeys(self._batches(period)))

    def _of_proximal(self, update: int, batch: int) -> list[NDArray[np.float32]]:
        period = self._run.schedule.staleness(update) // self._period
        batches = list(dict.fromkeys(self._batches(period)))
        begins = self._run.schedule.first_update(self._stage) + period * self._period
        if update == begins or not self._is_kept(period, begins):
            self._make(period, batches, begins)
        start = sum(len(self._plan[b]) for b in batches[: batches.index(batch)])
        kept = list(read_logprobs(self._kept, period))
        return kept[start : start + len(self._plan[batch])]

    def _batches(self, period: int) -> Iterator[int]:
        """The batches that the updates of `period` train on."""
        first = self._run.schedule.first_update(self._stage) + period * self._period
        end = self._run.schedule.first_update(self._stage + 1)
        return (
            self._run.schedule.batch_of(u) for u in range(first, min(first + self._period, end))
        )

    def _is_kept(self, period: int, begins: int) -> bool:
        if period not in self._kept:
            return False
        entry = self._kept.entry(period)
        return bool(entry["policy_step"] == begins and entry["period"] == self._period)

    def _make(self, period: int, batches: list[int], begins: int) -> None:
        """The logprobs of a period's rollouts under the policy that it begins with.

        In its middle (a shard was lost, or the objective changed) that policy is a checkpoint's.
        """
        places = [place for batch in batches for place in self._plan[batch]]
        rollouts = [rollout_from_row(row) for row in self._rollouts.rows(places)]
        run = self._run
        policy = run.frozen_policy(begins)
        found = rollout_logprobs(policy, rollouts, run.config, run.budget, run.stop.check)
        notes = {"policy_step": begins, "period": self._period}
        write_logprobs(self._kept, period, found, **notes)


def _of_these(rollouts: ShardSet, kept: ShardSet, shard: int, update: int) -> bool:
    """Whether `kept` has the logprobs of these very rollouts under the policy after `update`."""
    if shard not in kept:
        return False
    entry = kept.entry(shard)
    same = entry["rollouts_sha256"] == rollouts.entry(shard)["sha256"]
    return bool(same and entry["policy_step"] == update)
