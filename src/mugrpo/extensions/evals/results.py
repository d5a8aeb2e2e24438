"""What a suite's rollouts and scores say: measures with intervals, and the counts behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from typing import Any

import pyarrow.compute as pc

from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.records import FinishReason, Score, Status
from mugrpo.disk.shards import ShardSet, score_from_row
from mugrpo.extensions.evals.measures import ProblemResult, measured
from mugrpo.extensions.evals.options import Suite
from mugrpo.model.hardware import precision_of
from mugrpo.run.opening import OpenRun


@dataclass(frozen=True, slots=True)
class _Response:
    """What a result needs of a rollout and its score."""

    problem_id: str
    sample: int
    finish_reason: str
    tokens: int
    score: Score


def result_of(
    run: OpenRun, suite: Suite, update: int, rollouts: ShardSet, scores: ShardSet, seconds: float
) -> dict[str, Any]:
    """Return the content of result.json. Sampling and scoring took `seconds`."""
    config, task = run.config, run.config.task
    assert isinstance(task, DatasetOptions)
    statuses: Counter[str] = Counter()
    results = []
    everything = _responses(rollouts, scores)
    for id_, group in groupby(everything, key=lambda response: response.problem_id):
        run.stop.check()
        responses = list(group)
        results.append(_problem_result(id_, responses))
        statuses.update(response.score.status.value for response in responses)
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
        "precision": precision_of(config.model),
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
        "per_problem": [asdict(result) for result in results],
        "conventions": suite.options.conventions,
        "mugrpo": version("mugrpo"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _responses(rollouts: ShardSet, scores: ShardSet) -> Iterator[_Response]:
    """Yield every response with its score; those to a problem are adjacent."""
    columns = ["problem_id", "sample", "finish_reason", "response_ids"]
    for shard in rollouts.numbers():
        table = rollouts.open(shard).read(columns)
        lengths = pc.list_value_length(table["response_ids"]).to_pylist()
        parts = [*(table[name].to_pylist() for name in columns[:3]), lengths]
        rows = map(score_from_row, scores.open(shard).read().to_pylist())
        yield from map(_Response, *parts, rows)


def _problem_result(id_: str, responses: Sequence[_Response]) -> ProblemResult:
    statuses = [response.score.status for response in responses]
    return ProblemResult(
        id=id_,
        right=statuses.count(Status.RIGHT),
        judged=sum(status.rewarded for status in statuses),
        samples=len(responses),
        truncated=sum(r.finish_reason == FinishReason.LENGTH for r in responses),
        no_answer=statuses.count(Status.NO_ANSWER),
        tokens=sum(response.tokens for response in responses),
    )
