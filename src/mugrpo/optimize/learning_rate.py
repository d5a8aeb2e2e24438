"""The learning rate as a function of the number of updates, never of rollouts."""

import math
from typing import Literal


def learning_rate(
    update: int,
    *,
    peak: float,
    schedule: Literal["constant", "linear", "cosine"],
    warmup_updates: int,
    total_updates: int,
) -> float:
    """Return the learning rate of update number `update` (from 0).

    During the warm-up it is peak x (update + 1) / warmup_updates. Then it is constant, or falls
    linearly or as a cosine from peak to 0. The update after the last would have the rate 0, as in
    transformers: the last one still trains.
    """
    if update < warmup_updates:
        return peak * (update + 1) / warmup_updates
    if schedule == "constant":
        return peak
    progress = min(1.0, (update - warmup_updates) / max(1, total_updates - warmup_updates))
    fall = progress if schedule == "linear" else (1 - math.cos(math.pi * progress)) / 2
    return peak * (1 - fall)
