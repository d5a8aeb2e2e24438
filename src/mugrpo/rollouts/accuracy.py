"""Accuracy on held-out problems, with an interval."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mugrpo.disk.records import Status

_Z = 1.96  # standard normal: 95 % lie within


def accuracy(verdicts: Sequence[dict[str, Any]], k: int) -> dict[str, Any]:
    """Return the metrics of `verdicts`, in which the `k` samples of a problem are consecutive.

    `accuracy` is avg@k, the share of right samples, and `accuracy_low` and `accuracy_high` are the
    ends of its 95 % interval. `reward` is the mean reward. All leave out samples that could not be
    judged. `pass@k` is the share of problems with at least one right sample among k.
    """
    rewards = [v["reward"] for v in verdicts if v["reward"] is not None]
    right = [v["status"] == Status.RIGHT for v in verdicts]
    judged = [v["reward"] is not None for v in verdicts]
    starts = range(0, len(right), k)
    statuses = Counter(v["status"] for v in verdicts)
    low, high = interval([(sum(right[i : i + k]), sum(judged[i : i + k])) for i in starts])
    return {
        "accuracy": sum(right) / len(rewards) if rewards else None,
        "accuracy_low": low,
        "accuracy_high": high,
        "reward": sum(rewards) / len(rewards) if rewards else None,
        f"pass@{k}": sum(any(right[i : i + k]) for i in starts) / len(starts),
        "problems": len(starts),
        "samples": k,
        **{f"status/{status}": statuses[status] for status in Status},
    }


def interval(problems: Sequence[tuple[int, int]]) -> tuple[float | None, float | None]:
    """Return the 95 % interval of the share right, from each problem's (right, judged) samples.

    It is Wilson's interval. The samples of a problem are not independent, so it counts as many
    responses as would have, if independent, the standard error over problems: p (1 - p) / SE²,
    but at least one for each problem, and at most all of them. With one sample per problem it is
    the usual interval. It says how far the share right on more such problems may be. None if no
    sample is judged.
    """
    known = [(right, judged) for right, judged in problems if judged]
    if not known:
        return None, None
    total, count = sum(judged for _, judged in known), len(known)
    p = sum(right for right, _ in known) / total
    squares = sum((right - p * judged) ** 2 for right, judged in known)
    variance = squares * count / max(1, count - 1) / total**2
    n: float = count
    if count > 1 and 0 < p < 1:
        n = max(count, min(total, p * (1 - p) / variance if variance else total))
    middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(p * (1 - p) / n + (_Z / (2 * n)) ** 2)
    return max(0.0, middle - half), min(1.0, middle + half)
