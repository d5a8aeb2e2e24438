"""Statistics of a stage's rollouts."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mugrpo.disk.metrics import stage_trouble
from mugrpo.disk.shards import ShardSet


def refresh_metrics(rollouts: ShardSet, scores: ShardSet) -> dict[str, Any]:
    """Return statistics of a stage's rollouts, from their entries alone.

    Shards from another program may state only their number of rows; what they lack is not counted.
    `time/refresh` is the time it takes to hand the weights to the engine and check it, before the
    first rollout; `time/refresh/PART` is that of its parts: write, load (with starting or waking
    the process), trial (of engines that have started), canary.
    """
    shards, judged = rollouts.entries(), scores.entries()
    rows = sum(entry["rows"] for entry in shards)
    tokens = sum(entry.get("tokens", 0) for entry in shards)
    slots = sum(entry.get("slots", 0) for entry in shards)
    rewarded = sum(entry.get("rewarded", 0) for entry in judged)
    refreshes = [s for entry in shards if (s := entry.get("refresh_seconds")) is not None]
    parts = [p for entry in shards if (p := entry.get("refresh_parts"))]
    scored = sum(entry["rows"] for entry in judged)
    groups = sum(n for entry in judged if isinstance(n := entry.get("groups"), int))
    without_variance = sum(entry.get("zero_variance_groups", 0) for entry in judged)
    statuses: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for entry in judged:
        statuses.update(entry.get("statuses", {}))
        right.update(entry.get("groups_right", {}))
    return {
        "rollouts": rows,
        "tokens": tokens,
        "mean_length": tokens / rows if tokens else None,
        "occupancy": tokens / slots if slots else None,
        "behavior_reward": sum(e.get("reward_sum", 0.0) for e in judged) / rewarded
        if rewarded
        else None,
        "zero_variance_share": without_variance / groups if groups else None,
        "truncated_share": sum(e.get("truncated", 0) for e in judged) / scored if scored else None,
        **{f"status/{status}": count for status, count in sorted(statuses.items())},
        **{f"groups_right/{share}": count for share, count in sorted(right.items())},
        **logged_means(judged),
        "time/refresh": sum(refreshes) / len(refreshes) if refreshes else None,
        **{
            f"time/refresh/{name}": sum(p.get(name, 0.0) for p in parts) / len(parts)
            for name in sorted({name for p in parts for name in p})
        },
        "time/generate": sum(entry.get("seconds", 0.0) for entry in shards),
        "time/score": sum(entry.get("seconds", 0.0) for entry in judged),
    }


def logged_means(scores: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each metric that was logged, from the entries of scores.

    `rewards/NAME/mean` is the mean of one reward over the responses that it judged; `logged/NAME`
    that of what reward functions gave to `log_metric`. Of a mixture, `share/SOURCE` is a source's
    share of them, and `reward/SOURCE` its mean reward. Shards of earlier versions have none.
    """
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for entry in scores:
        for name, count in entry.get("logged_counts", {}).items():
            sums[name] = sums.get(name, 0.0) + entry["logged_sums"][name]
            counts[name] = counts.get(name, 0) + count
    return {name: sums[name] / counts[name] for name in sorted(sums)}


def refresh_text(refresh: Mapping[str, Any], longest: int) -> str:
    """Return a stage's statuses in one line, and a warning if hardly any group has a gradient.

    Responses have at most `longest` tokens.
    """
    rows = refresh["rollouts"]
    counts = {key[7:]: n for key, n in refresh.items() if key.startswith("status/")}
    parts = [f"{name.replace('_', ' ')} {n} ({n / rows:.1%})" for name, n in counts.items()]
    text = f"  {rows} rollouts: {', '.join(parts)}"
    if means := rewards_text(refresh):
        text += f"\n  {means}"
    for source in [key.removeprefix("share/") for key in refresh if key.startswith("share/")]:
        reward = refresh.get(f"reward/{source}")
        mean = "" if reward is None else f", mean reward {reward:.3f}"
        text += f"\n  {source}: {refresh[f'share/{source}']:.1%} of the rollouts{mean}"
    trouble = stage_trouble(refresh, longest)
    return f"{text}\n  warning: {trouble}" if trouble else text


def rewards_text(line: Mapping[str, Any]) -> str:
    """Return the mean of each reward in a line of a refresh or an evaluation, "" if it has none."""
    means = {key[8:-5]: n for key, n in line.items() if re.fullmatch("rewards/.*/mean", key)}
    each = (f"{name} {mean:.3f}" for name, mean in means.items() if mean is not None)
    return f"mean of each reward, where judged: {', '.join(each)}" if means else ""
