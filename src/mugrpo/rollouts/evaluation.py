"""The numbers of an evaluation: accuracy and reward, with their intervals, from its shards.

P problems, n responses to each. Values of a problem that are not known are NaN and left out.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mugrpo.disk.metrics import number
from mugrpo.disk.records import FinishReason, Rollout, Status
from mugrpo.disk.shards import RowReader, ShardSet, read_rollouts
from mugrpo.rollouts.statistics import logged_means
from mugrpo.rollouts.student import quantile

Floats = NDArray[np.float64]


def headline(*lines: Mapping[str, Any]) -> str:
    """Return what says how good a policy is: "accuracy", or "reward" if no line has a verdict."""
    known = any(number(line, "accuracy") is not None for line in lines)
    return "accuracy" if known else "reward"


def value_text(line: Mapping[str, Any], name: str) -> str:
    """Return an evaluation's accuracy or reward, with its 95 % interval if the line has one."""
    value, low, high = (number(line, f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return "not measured"
    around = f" ({low:.3f} to {high:.3f})" if low is not None and high is not None else ""
    return f"{value:.3f}{around}"


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
        responses, verdicts, k, decided = _judged(rollouts, scores, shard)
        found = accuracy(verdicts, k, decided)
        found |= accuracy_by_source(verdicts, k, decided, sources)
        found |= logged_means([scores.entry(shard)])
        cut = sum(response.finish_reason is FinishReason.LENGTH for response in responses)
        found["truncated_share"] = cut / len(responses)
        if not shard:
            sampled = [r.behavior_logprobs[r.sampled] for r in responses]
            measured["temperature"] = responses[0].temperature
            measured["entropy"] = -float(np.concatenate(sampled).mean(dtype=np.float64))
        measured |= {f"{prefix}{name}": value for name, value in found.items()}
    return measured


def shares_of_problems(folder: Path) -> dict[str, float]:
    """Return problem -> its share of right samples in the evaluation in `folder`.

    It is NaN if none has a verdict. Raises RunStopped if a shard is missing or damaged.
    """
    rollouts, scores = (ShardSet(folder / kind, kind) for kind in ("rollouts", "scores"))
    responses, verdicts, k, decided = _judged(rollouts, scores, 0)
    shares = avg_at(*_counts(verdicts, k, decided)).tolist()
    return dict(zip((r.problem_id for r in responses[::k]), shares, strict=True))


def _judged(
    rollouts: ShardSet, scores: ShardSet, shard: int
) -> tuple[list[Rollout], list[dict[str, Any]], int, list[bool]]:
    """Return a shard's responses and verdicts, their number for a problem, and who is `decided`."""
    responses = list(read_rollouts(rollouts, shard))
    verdicts = RowReader(scores).rows((shard, row) for row in range(len(responses)))
    k = 1 + max(response.sample for response in responses)
    undecided = set(scores.entry(shard).get("undecided", ()))
    return responses, verdicts, k, [r.problem_id not in undecided for r in responses[::k]]


def _counts(
    verdicts: Sequence[dict[str, Any]], k: int, decided: Sequence[bool]
) -> tuple[list[int], list[int]]:
    """Return how many of each problem's samples are right, and how many have a verdict, [P]."""
    starts = range(0, len(verdicts), k)
    right_P = [sum(v["status"] == Status.RIGHT for v in verdicts[i : i + k]) for i in starts]
    known = [v["reward"] is not None and v["status"] != Status.GRADED for v in verdicts]
    judged_P = [sum(known[i : i + k]) * d for i, d in zip(starts, decided, strict=True)]
    return right_P, judged_P


def accuracy(verdicts: Sequence[dict[str, Any]], k: int, decided: Sequence[bool]) -> dict[str, Any]:
    """Return the metrics of `verdicts`, in which the `k` samples of a problem are consecutive.

    `decided` says of each problem whether its rewards have a verdict. Without one there is no
    accuracy: not of a reward, nor of a response that was truncated.

    `accuracy` is avg@k, the mean over problems of the share of right samples, and `accuracy_low`
    and `accuracy_high` are the ends of its 95 % interval. `reward` is the mean reward, with the
    interval of Student's t over problems. All leave out samples that could not be judged. `pass@k`
    is the share of problems with at least one right sample among k, of those whose k samples were
    all judged. What no sample tells is None.
    """
    starts = range(0, len(verdicts), k)
    right_P, judged_P = _counts(verdicts, k, decided)
    statuses = Counter(v["status"] for v in verdicts)
    kept_P = ([v["reward"] for v in verdicts[i : i + k] if v["reward"] is not None] for i in starts)
    reward, *ends = _mean_reward([kept for kept in kept_P if kept])
    shares, passes = _known(avg_at(right_P, judged_P)), _known(pass_at(right_P, judged_P, k))
    low, high = interval(shares, k) if len(shares) else (None, None)
    return {
        "accuracy": float(shares.mean()) if len(shares) else None,
        "accuracy_low": None if low is None else float(low),
        "accuracy_high": None if high is None else float(high),
        "reward": reward,
        **dict(zip(("reward_low", "reward_high"), ends, strict=True)),
        f"pass@{k}": float(passes.mean()) if len(passes) else None,
        "problems": len(starts),
        "samples": k,
        **{f"status/{status}": statuses[status] for status in Status},
    }


def accuracy_by_source(
    verdicts: Sequence[dict[str, Any]],
    k: int,
    decided: Sequence[bool],
    sources: Sequence[str | None],
) -> dict[str, Any]:
    """Return `accuracy/SOURCE`, with the ends of its interval, for each source of a mixture.

    `verdicts` are as in `accuracy`, and `sources` has the source of each problem, or None.
    """
    found: dict[str, Any] = {}
    for source in dict.fromkeys(sources):
        places = [index for index, one in enumerate(sources) if one == source]
        own = [v for i in places for v in verdicts[i * k : (i + 1) * k]]
        if source is not None:
            ends = ("", "_low", "_high")
            measured = accuracy(own, k, [decided[index] for index in places])
            found |= {f"accuracy{end}/{source}": measured[f"accuracy{end}"] for end in ends}
    return found


def _mean_reward(rewards_P: Sequence[Sequence[float]]) -> tuple[float | None, ...]:
    """Return the mean of all rewards and the ends of its 95 % interval, None if not known.

    `rewards_P` has those of each problem. Of one problem the interval is not known.
    """
    if not rewards_P:
        return None, None, None
    rewards = [reward for of_problem in rewards_P for reward in of_problem]
    mean = sum(rewards) / len(rewards)
    if len(rewards_P) == 1:
        return mean, None, None
    means_P = [sum(of_problem) / len(of_problem) for of_problem in rewards_P]
    error = float(np.std(means_P, ddof=1)) / math.sqrt(len(means_P))
    margin = float(quantile(0.975, len(means_P) - 1)) * error
    return mean, mean - margin, mean + margin


def _known(values_P: Floats) -> Floats:
    return values_P[~np.isnan(values_P)]


def interval(values_P: ArrayLike, samples: float) -> tuple[Floats, Floats]:
    """Return the ends of the 95 % interval of the mean over problems of values in [0, 1].

    `values_P` is [..., P], each value computed from about `samples` responses to its problem. The
    ends have the leading shape. The interval is for the mean over all problems of the same source
    and all responses to them: both levels vary, and both are in the spread of the values over
    problems.

    The method is Wilson's interval (1927) with the effective number of responses of Korn and
    Graubard (1998), n = p (1 - p) / SE^2 with the standard error SE over problems, and with the
    quantile of Student's t with P - 1 degrees of freedom in place of the normal one. n is at least
    P, and at most all responses. If p is 0 or 1, n is P. Franco, Little, Louis and Slud (2019)
    recommend this form among eight.

    In simulations (tests/extensions/evals) it covers the mean in 93 to 97 % of the cases with 100
    problems or more. With 30 problems it covers less if p is near 0 or 1 because a few problems
    decide it (88 % in the worst case there), and up to 98 % with one response per problem. One
    problem says nothing about others: its interval is [0, 1].
    """
    values_P = np.asarray(values_P, dtype=np.float64)
    problems = values_P.shape[-1]
    assert problems > 0 and samples >= 1 and ((values_P >= 0) & (values_P <= 1)).all()
    mean = values_P.mean(-1)
    if problems == 1:
        return 0 * mean, 0 * mean + 1
    inner = mean * (1 - mean)
    variance = values_P.var(-1, ddof=1) / problems
    with np.errstate(divide="ignore", invalid="ignore"):
        n = np.where(variance > 0, inner / variance, problems * samples)
    n = np.clip(np.where(inner > 0, n, problems), problems, problems * samples)
    z = quantile(0.975, problems - 1)
    middle = (mean + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(np.maximum(0, inner) / n + (z / (2 * n)) ** 2)
    return np.clip(middle - half, 0, mean), np.clip(middle + half, mean, 1)


def avg_at(right_P: Sequence[int], judged_P: Sequence[int]) -> Floats:
    """Return each problem's share of right responses, [P]; NaN if none has a verdict."""
    return _each(lambda n, c: c / n, right_P, judged_P, 1)


def pass_at(right_P: Sequence[int], judged_P: Sequence[int], k: int) -> Floats:
    """Return pass@k of each problem, [P]: the probability that one of k responses is right.

    It is unbiased, the share of all subsets of k of the n responses that hold one of the c right
    ones: 1 - C(n - c, k) / C(n, k) (Chen et al., arXiv 2107.03374, eq. 1). So pass@1 = avg@n.
    Problems with fewer than k verdicts are NaN.
    """
    return _each(lambda n, c: (comb(n, k) - comb(n - c, k)) / comb(n, k), right_P, judged_P, k)


def _each(
    value: Callable[[int, int], float], right_P: Sequence[int], judged_P: Sequence[int], k: int
) -> Floats:
    """Return value(judged, right) of each problem, NaN if it has fewer than k verdicts."""
    pairs = zip(right_P, judged_P, strict=True)
    return np.array([value(n, c) if n >= k else math.nan for c, n in pairs], dtype=np.float64)
