"""Accuracy on held-out problems, with an interval, and an evaluation's numbers from its shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mugrpo.disk.records import Status
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import RowReader, ShardSet, read_rollouts
from mugrpo.rollouts.intervals import Floats, interval
from mugrpo.rollouts.measures import avg_at, pass_at
from mugrpo.rollouts.statistics import logged_means

_PASSES = ("", "greedy/")  # the shards of an evaluation


def evaluated(folder: Path, sources: Sequence[str | None] = ()) -> dict[str, Any]:
    """Return the numbers of the evaluation in `folder`, from its shards of rollouts and scores.

    Shard 0 has the samples, shard 1 the greedy responses, if there are any. `sources` are as in
    `accuracy_by_source`. `entropy`, in nats per token, is estimated on the samples. Raises
    RunStopped if a shard is missing or damaged.
    """
    rollouts, scores = (ShardSet(folder / kind, kind) for kind in ("rollouts", "scores"))
    measured: dict[str, Any] = {}
    for shard, prefix in zip(rollouts.numbers(), _PASSES, strict=False):
        responses = list(read_rollouts(rollouts, shard))
        verdicts = RowReader(scores).rows((shard, row) for row in range(len(responses)))
        k = 1 + max(response.sample for response in responses)
        found = accuracy(verdicts, k) | accuracy_by_source(verdicts, k, sources)
        found |= logged_means([scores.entry(shard)])
        if not shard:
            sampled = [r.behavior_logprobs[r.sampled] for r in responses]
            measured["temperature"] = responses[0].temperature
            measured["entropy"] = -float(np.concatenate(sampled).mean(dtype=np.float64))
        measured |= {f"{prefix}{name}": value for name, value in found.items()}
    return measured


def contradicted(run_dir: RunDir, lines: Iterable[dict[str, Any]]) -> Iterator[int]:
    """Yield the updates of evaluations whose last one of `lines` differs from their shards.

    Raises RunStopped if a shard is missing or damaged.
    """
    evaluations = {line["update"]: line for line in lines if line["kind"] == "evaluation"}
    for update, line in evaluations.items():
        if (folder := run_dir.evaluation(update)).is_dir():
            numbers = evaluated(folder).items()
            if any(line.get(name) != value for name, value in numbers if value == value):
                yield update


def accuracy(verdicts: Sequence[dict[str, Any]], k: int) -> dict[str, Any]:
    """Return the metrics of `verdicts`, in which the `k` samples of a problem are consecutive.

    `accuracy` is avg@k, the mean over problems of the share of right samples, and `accuracy_low`
    and `accuracy_high` are the ends of its 95 % interval. `reward` is the mean reward. All leave
    out samples that could not be judged. `pass@k` is the share of problems with at least one right
    sample among k, of those whose k samples were all judged. What no sample tells is None.
    """
    rewards = [v["reward"] for v in verdicts if v["reward"] is not None]
    starts = range(0, len(verdicts), k)
    right_P = [sum(v["status"] == Status.RIGHT for v in verdicts[i : i + k]) for i in starts]
    judged_P = [sum(v["reward"] is not None for v in verdicts[i : i + k]) for i in starts]
    statuses = Counter(v["status"] for v in verdicts)
    shares, passes = _known(avg_at(right_P, judged_P)), _known(pass_at(right_P, judged_P, k))
    low, high = interval(shares, k) if len(shares) else (None, None)
    return {
        "accuracy": float(shares.mean()) if len(shares) else None,
        "accuracy_low": None if low is None else float(low),
        "accuracy_high": None if high is None else float(high),
        "reward": sum(rewards) / len(rewards) if rewards else None,
        f"pass@{k}": float(passes.mean()) if len(passes) else None,
        "problems": len(starts),
        "samples": k,
        **{f"status/{status}": statuses[status] for status in Status},
    }


def accuracy_by_source(
    verdicts: Sequence[dict[str, Any]], k: int, sources: Sequence[str | None]
) -> dict[str, Any]:
    """Return `accuracy/SOURCE`, with the ends of its interval, for each source of a mixture.

    `verdicts` are as in `accuracy`, and `sources` has the source of each problem, or None.
    """
    found: dict[str, Any] = {}
    for source in dict.fromkeys(sources):
        places = [index for index, one in enumerate(sources) if one == source]
        own = [v for i in places for v in verdicts[i * k : (i + 1) * k]]
        if source is not None:
            ends, measured = ("", "_low", "_high"), accuracy(own, k)
            found |= {f"accuracy{end}/{source}": measured[f"accuracy{end}"] for end in ends}
    return found


def _known(values_P: Floats) -> Floats:
    return values_P[~np.isnan(values_P)]
