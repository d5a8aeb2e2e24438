"""Dynamic sampling (DAPO, arXiv 2503.14476): groups to train on, and how many more to sample."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mugrpo.config.rewards import RewardOptions
from mugrpo.disk.records import Status
from mugrpo.disk.shards import Place

_SPARE = 1.1  # factor on the expected need: another round costs more than a few spare groups


@dataclass(frozen=True)
class Group:
    """A sampled group: its problem, and the place of each of its rollouts."""

    problem: int
    places: list[Place]


def correctness_varies(statuses: Sequence[Status], rewards: RewardOptions) -> bool:
    """Return whether a group has both right and other responses, before any reward shaping.

    Responses without a verdict and masked responses do not count.
    """
    right = {status is Status.RIGHT for status in statuses if rewards.counts(status)}
    return len(right) == 2


def batches(groups: Sequence[Group], size: int, wanted: int | None = None) -> list[list[Group]]:
    """Return full batches of `size` groups of different problems, at most `wanted` batches.

    Each group goes into the first batch that has room for it and lacks its problem, so groups keep
    their order. If another arrangement fills more batches, the groups are dealt out that way
    instead. Groups that fill no batch are left out.
    """
    possible = len(groups) // size if wanted is None else wanted
    full = _first_fit(groups, size)[:possible]
    counts = Counter(group.problem for group in groups)
    while sum(min(count, possible) for count in counts.values()) < possible * size:
        possible -= 1
    return full if len(full) == possible else _dealt(groups, size, possible)


def _dealt(groups: Sequence[Group], size: int, count: int) -> list[list[Group]]:
    """Return `count` full batches, dealing groups to them in turn, the commonest problem first."""
    by_problem: dict[int, list[Group]] = {}
    for group in groups:
        by_problem.setdefault(group.problem, []).append(group)
    commonest = sorted(by_problem.values(), key=len, reverse=True)
    cards = [group for same in commonest for group in same[:count]][: count * size]
    return [cards[batch::count] for batch in range(count)]


def _first_fit(groups: Iterable[Group], size: int) -> list[list[Group]]:
    opened: list[dict[int, Group]] = []  # batches: problem -> its group
    first = 0  # all batches before this one are full
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
    """Return how many more groups to sample if `kept` of the `sampled` groups can be used so far.

    `needed` groups are needed in all. The share of usable groups is taken to be (kept + 1) /
    (sampled + 1). The result is between `least` and `most`.
    """
    share = (kept + 1) / (sampled + 1)
    return min(most, max(least, math.ceil(_SPARE * (needed - kept) / share)))
