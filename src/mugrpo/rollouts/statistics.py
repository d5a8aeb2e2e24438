"""What a stage's rollouts are like."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mugrpo.shards import ShardSet


def refresh_metrics(rollouts: ShardSet, scores: ShardSet) -> dict[str, Any]:
    """What a stage's rollouts are like, from the manifests alone.

    Rollouts made elsewhere may lack occupancy, canary and seconds.
    """
    made, judged = rollouts.entries(), scores.entries()
    rows = sum(entry["rows"] for entry in made)
    tokens = sum(entry["tokens"] for entry in made)
    slots = sum(entry.get("slots", 0) for entry in made)
    rewarded = sum(entry["rewarded"] for entry in judged)
    gaps = [gap for entry in made if (gap := entry.get("canary_gap")) is not None]
    statuses: Counter[str] = Counter()
    for entry in judged:
        statuses.update(entry["statuses"])
    return {
        "rollouts": rows,
        "tokens": tokens,
        "mean_length": tokens / rows,
        "occupancy": tokens / slots if slots else None,
        "canary_gap": max(gaps, default=None),
        "behavior_reward": sum(e["reward_sum"] for e in judged) / rewarded if rewarded else None,
        **{f"status/{status}": count for status, count in sorted(statuses.items())},
        "time/generate": sum(entry.get("seconds", 0.0) for entry in made),
        "time/score": sum(entry["seconds"] for entry in judged),
    }
