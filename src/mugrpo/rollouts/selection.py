"""Dynamic sampling (DAPO, arXiv 2503.14476): which groups are trained on, how many are missing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mugrpo.config.run import RewardOptions
from mugrpo.disk.records import Status

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


def batches(groups: Sequence[Group], size: int, wanted: int | None = None) -> list[list[Group]]:
    """Full batches of `size` groups of different problems, at most `wanted`; others are left out.

    Each group goes into the first batch that it fits, so that they keep their order; where fewer
    batches become full so than could be, groups are dealt out anew.
    """
    possible = len(groups) // size if wanted is None else wanted
    full = _first_fit(groups, size)[:possible]
    counts = Counter(group.problem for group in groups)
    while sum(min(count, possible) for count in counts.values()) < possible * size:
        possible -= 1
    return full if len(full) == possible else _dealt(groups, size, possible)


def _dealt(groups: Sequence[Group], size: int, count: int) -> list[list[Group]]:
    """`count` full batches: problem by problem, the most frequent first, to one after another."""
    by_problem: dict[int, list[Group]] = {}
    for group in groups:
        by_problem.setdefault(group.problem, []).append(group)
    several = sorted(by_problem.values(), key=len, reverse=True)
    cards = [group for of_one in several for group in of_one[:count]][: count * size]
    return [cards[batch::count] for batch in range(count)]


def _first_fit(groups: Iterable[Group], size: int) -> list[list[Group]]:
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
