"""Dynamic sampling (DAPO, arXiv 2503.14476): which groups are trained on, how many are missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mugrpo.config.run import RewardOptions
from mugrpo.records import Status

_SPARE = 1.1  # groups sampled over the expected need: another round costs more than a few groups


@dataclass(frozen=True)
class Group:
    """A sampled group: its problem, and the (shard, row) of each of its rollouts."""

    problem: int
    places: list[tuple[int, int]]


def correctness_varies(statuses: Sequence[Status], rewards: RewardOptions) -> bool:
    """Whether a group has right and other responses, whatever their rewards are shaped to.

    Responses without a verdict, and those that are masked, do not count.
    """
    right = {status is Status.RIGHT for status in statuses if rewards.counts(status)}
    return len(right) == 2


def batches(groups: Iterable[Group], size: int) -> list[list[Group]]:
    """Full batches of `size` groups of different problems, each group in the first that it fits.

    Groups that no full batch takes are left out.
    """
    opened: list[dict[int, Group]] = []
    first = 0  # before it all are full
    for group in groups:
        place = first
        while place < len(opened) and (
            len(opened[place]) == size or group.problem in opened[place]
        ):
            place += 1
        if place == len(opened):
            opened.append({})
        opened[place][group.problem] = group
        while first < len(opened) and len(opened[first]) == size:
            first += 1
    return [list(batch.values()) for batch in opened if len(batch) == size]


def further_groups(*, needed: int, kept: int, sampled: int, least: int, most: int) -> int:
    """How many more groups to sample, where of `sampled` so far `kept` of the `needed` ones are.

    Between `least` and `most`; by the share that was kept so far, as if one more of one more had.
    """
    share = (kept + 1) / (sampled + 1)
    return min(most, max(least, math.ceil(_SPARE * (needed - kept) / share)))
