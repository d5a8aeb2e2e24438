"""Stages on disk that tests write by hand."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.records import FinishReason, Rollout
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import write_rollouts, write_scores
from mugrpo.processes.lifetime import StopFlag
from mugrpo.processes.ranks import ALONE
from mugrpo.rollouts.schedule import Schedule
from mugrpo.run.progress import Progress
from mugrpo.run.stage import Stage
from tests.builders import verdict

PROBLEMS = 24


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
    schedule = {
        "stages": 2,
        "batches_per_stage": 3,
        "growth": 1,
        "problems_per_update": 2,
        "group_size": 4,
        **groups.pop("schedule", {}),
    }
    raw = {"schedule": schedule, "rollouts": {"shard_rollouts": 8}, **groups}
    config = build_config(raw, "test")
    arithmetic = Schedule(config.schedule, PROBLEMS, config.seed)
    return Stage(number, arithmetic, RunDir(folder), config, judge="judge")


def write_shard(
    stage: Stage, shard: int, rewards: Sequence[Sequence[float]], *, judge: str = "judge"
) -> None:
    """Write a shard's rollouts and scores: rewards by group, in the order of its draws."""
    draws = stage.drawn[shard]
    rollouts, scores = [], []
    for (problem, occurrence), group in zip(draws, rewards, strict=True):
        for sample, reward in enumerate(group):
            ids = np.array([problem, sample], np.int32)
            rollouts.append(
                Rollout(
                    problem_id=str(problem),
                    occurrence=occurrence,
                    sample=sample,
                    seed=sample,
                    prompt_ids=ids,
                    response_ids=ids,
                    behavior_logprobs=np.array([-1.0, -2.0], np.float32),
                    finish_reason=FinishReason.STOP,
                    temperature=1.0,
                    policy_step=stage.first_update,
                )
            )
            scores.append(verdict(reward))
    written = stage.shards("rollouts")
    write_rollouts(written, shard, rollouts, policy_step=stage.first_update)
    sha256 = written.entry(shard)["sha256"]
    write_scores(
        stage.shards("scores"),
        shard,
        scores,
        rollouts_sha256=sha256,
        judge=judge,
        statuses={},
        reward_sum=sum(map(sum, rewards)),
        rewarded=len(scores),
        groups=len(draws),
        zero_variance_groups=0,
        seconds=0.0,
    )
