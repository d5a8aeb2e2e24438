"""What a suite's rollouts and scores say: measures with intervals, and the counts behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from typing import Any

from mugrpo.config.rewards import FunctionOptions
from mugrpo.config.suites import Suite
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.records import Answer, FinishReason, Problem, Rollout, Score, Status
from mugrpo.disk.shards import ShardSet, read_rollouts, score_from_row
from mugrpo.rollouts.agreement import agreement
from mugrpo.rollouts.measures import ProblemResult, Vote, majority, measured, merged
from mugrpo.run.opened import OpenRun

Scored = tuple[Rollout, Score]

_DISAGREEMENTS = 100  # listed in a result; all are counted


def result_of(
    run: OpenRun, suite: Suite, update: int, rollouts: ShardSet, scores: ShardSet, seconds: float
) -> dict[str, Any]:
    """Return the content of result.json. Sampling and scoring took `seconds`."""
    config, task = run.config, run.config.task
    assert isinstance(task, DatasetOptions)
    problems = {problem.id: problem for problem in run.eval_problems}
    groups = groupby(_scored(rollouts, scores), key=lambda pair: pair[0].problem_id)
    results = [_problem_result(run, problems[id_], list(pairs)) for id_, pairs in groups]
    statuses = Counter(score.status.value for _, score in _scored(rollouts, scores))
    measures = measured(results)
    return {
        "suite": suite.name,
        "title": suite.options.title,
        "update": update,
        "model": config.model.path,
        "data": task.data,
        "subset": task.subset,
        "split": task.split,
        "revision": task.revision,
        "engine": config.engine.name,
        "precision": config.model.precision,
        "samples": suite.options.samples,
        "temperature": config.rollouts.temperature,
        "top_p": suite.options.top_p,
        "max_new_tokens": config.rollouts.max_new_tokens,
        "seed": config.seed,
        "problems": len(results),
        "responses": sum(statuses.values()),
        "seconds": seconds,
        "measures": {name: [m.value, m.low, m.high] for name, m in measures.items()},
        "statuses": dict(statuses),
        "agreement": _agreement(task, problems, rollouts, scores),
        "per_problem": [asdict(result) for result in results],
        "mugrpo": version("mugrpo"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def line_of(result: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a result's line in metrics.jsonl: `accuracy` is its avg@k."""
    line = {name: result[name] for name in ("problems", "samples", "temperature", "top_p")}
    for name, (value, low, high) in result["measures"].items():
        name = "accuracy" if name.startswith("avg@") else name
        line |= {name: value, f"{name}_low": low, f"{name}_high": high}
    if result["agreement"]:
        line["graders_agree"] = result["agreement"]["share"]
    return {**line, "time/evaluate": result["seconds"]}


def _scored(rollouts: ShardSet, scores: ShardSet) -> Iterator[Scored]:
    """Yield every rollout with its score; those of a problem are adjacent."""
    for shard in rollouts.numbers():
        rows = scores.open(shard).read().to_pylist()
        yield from zip(read_rollouts(rollouts, shard), map(score_from_row, rows), strict=True)


def _problem_result(run: OpenRun, problem: Problem, pairs: Sequence[Scored]) -> ProblemResult:
    rollouts, scores = zip(*pairs, strict=True)
    return ProblemResult(
        id=problem.id,
        right=sum(score.status is Status.RIGHT for score in scores),
        judged=sum(score.status.rewarded for score in scores),
        samples=len(pairs),
        majority=_majority(run, problem, scores),
        truncated=sum(rollout.finish_reason is FinishReason.LENGTH for rollout in rollouts),
        no_answer=sum(score.status is Status.NO_ANSWER for score in scores),
        tokens=sum(len(rollout.response_ids) for rollout in rollouts),
    )


def _majority(run: OpenRun, problem: Problem, scores: Sequence[Score]) -> float:
    """Return maj@k. The suite's judge says which answers are equal."""
    counts = Counter(
        (score.parts["answer"], score.status is Status.RIGHT)
        for score in scores
        if "answer" in score.parts
    )

    def equal(first: str, second: str) -> bool:
        asked = Problem(problem.id, problem.prompt, second, problem.columns)
        answer = Answer(asked, rf"\boxed{{{first}}}", (), FinishReason.STOP)
        (score,) = run.task.score([answer])
        return score.status is Status.RIGHT

    votes = [Vote(answer, count, right) for (answer, right), count in counts.items()]
    return majority(merged(votes, equal))


def _agreement(
    task: DatasetOptions, problems: dict[str, Problem], rollouts: ShardSet, scores: ShardSet
) -> dict[str, Any] | None:
    """Return how the suite's two graders agree, or None if it has only one."""
    names = [reward.label for reward in task.rewards if not isinstance(reward, FunctionOptions)]
    if len(names) < 2:
        return None
    first, second = names[:2]
    found = agreement(
        (
            (
                f"{rollout.problem_id}/{rollout.sample}",
                problems[rollout.problem_id].answer,
                score.parts,
            )
            for rollout, score in _scored(rollouts, scores)
        ),
        first,
        second,
    )
    counts = asdict(found)
    counts["disagreements"] = counts["disagreements"][:_DISAGREEMENTS]
    return {"first": first, "second": second, "share": found.share, **counts}
