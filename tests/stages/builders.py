"""Stages on disk that tests write by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.records import FinishReason, Problem
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import write_rollouts, write_scores
from mugrpo.engines.base import Completion
from mugrpo.processes.lifetime import StopFlag
from mugrpo.processes.ranks import ALONE
from mugrpo.rollouts.schedule import Schedule
from mugrpo.run.progress import Progress
from mugrpo.run.stage import Stage
from tests.builders import rollout, verdict

PROBLEMS = [Problem(str(number), "", "") for number in range(24)]


def run_of(folder: Path, config: RunConfig | None = None) -> Any:
    """Return what a host asks of an open run: a folder and a config, with nothing loaded."""
    return SimpleNamespace(
        folder=RunDir(folder),
        config=config or RunConfig(),
        ranks=ALONE,
        progress=Progress(shown=False),
        stop=StopFlag(),
        check=lambda: None,
    )


def stage_of(folder: Path, number: int = 0, **groups: Any) -> Stage:
    """Return stage `number` of a run: 3 batches of 2 groups of 4, 8 rollouts a shard."""
    schedule = {"stages": 2, "batches_per_stage": 3, "growth": 1}
    schedule |= {"problems_per_update": 2, "group_size": 4, **groups.pop("schedule", {})}
    raw = {"schedule": schedule, "rollouts": {"shard_rollouts": 8}, **groups}
    config = build_config(raw, "test")
    arithmetic = Schedule(config.schedule, PROBLEMS, config.seed)
    return Stage(number, arithmetic, RunDir(folder), config, judge="judge")


def write_shard(
    stage: Stage, shard: int, rewards: Sequence[Sequence[float]], *, judge: str = "judge"
) -> None:
    """Write a shard's rollouts and scores: rewards by group, in the order of its draws."""
    draws, step = stage.drawn[shard], stage.first_update
    rollouts, logprobs = [], np.array([-1.0, -2.0], np.float32)
    for (problem, occurrence), group in zip(draws, rewards, strict=True):
        for sample in range(len(group)):
            ids = np.array([int(problem.id), sample], np.int32)
            one = rollout(problem.id, sample, ids, Completion(ids, logprobs, FinishReason.STOP))
            rollouts.append(replace(one, occurrence=occurrence, policy_step=step))
    written = stage.shards("rollouts")
    write_rollouts(written, shard, rollouts, policy_step=step)
    write_scores(
        stage.shards("scores"),
        shard,
        [verdict(reward) for group in rewards for reward in group],
        rollouts_sha256=written.entry(shard)["sha256"],
        judge=judge,
        statuses={},
        reward_sum=sum(map(sum, rewards)),
        rewarded=len(rollouts),
        groups=len(draws),
        zero_variance_groups=0,
        seconds=0.0,
    )
