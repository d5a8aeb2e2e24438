"""A shard of rollouts becomes a shard of scores. Scoring again never generates again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from mugrpo.errors import UsageError
from mugrpo.records import FinishReason, Problem, Rollout, Score, Status
from mugrpo.shards import ShardSet, read_rollouts, write_scores
from mugrpo.tasks.base import Task


def score_rollout(task: Task, problem: Problem, rollout: Rollout, tokenizer: Any) -> Score:
    """The task's verdict; an exception becomes Status.ERROR and keeps its reason."""
    stopped = rollout.finish_reason is FinishReason.STOP  # its last id says only that
    ids = rollout.response_ids[:-1] if stopped else rollout.response_ids
    text = tokenizer.decode(ids, skip_special_tokens=True)
    try:
        return task.score(problem, text, rollout.finish_reason)
    except Exception as error:
        return Score(Status.ERROR, None, {"reason": f"{type(error).__name__}: {error}"})


def score_shard(
    rollouts: ShardSet,
    scores: ShardSet,
    shard: int,
    *,
    task: Task,
    problems: Mapping[str, Problem],
    tokenizer: Any,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Score one shard and publish the scores, with counts by status in the manifest.

    `check` is called between rollouts and may raise to stop. Raises UsageError for a rollout of a
    problem that is not among `problems`.
    """
    began = time.monotonic()
    verdicts = []
    for rollout in read_rollouts(rollouts, shard):
        check()
        if rollout.problem_id not in problems:
            raise UsageError(
                f"{rollouts.path(shard)} answers problem {rollout.problem_id!r}, which the task "
                "does not have; use the task that the rollouts were made for"
            )
        verdicts.append(score_rollout(task, problems[rollout.problem_id], rollout, tokenizer))
    rewards = [score.reward for score in verdicts if score.reward is not None]
    write_scores(
        scores,
        shard,
        verdicts,
        rollouts_sha256=rollouts.entry(shard)["sha256"],
        statuses=dict(Counter(score.status.value for score in verdicts)),
        reward_sum=sum(rewards),
        rewarded=len(rewards),
        seconds=time.monotonic() - began,
    )


def scored(rollouts: ShardSet, scores: ShardSet, shard: int) -> bool:
    """Whether `scores` has `shard`, made of the very rollouts that `rollouts` has now."""
    if shard not in rollouts or shard not in scores:
        return False
    return bool(scores.entry(shard)["rollouts_sha256"] == rollouts.entry(shard)["sha256"])
