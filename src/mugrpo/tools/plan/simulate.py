"""Continuous batching, request by request: how many slots are busy in every step.

An engine has a fixed number of slots. Requests start in order, each as soon as a slot is free. The
first token of a response comes out of the prefill of its prompt, and each of the others takes one
decode step. All busy slots make a step together, so which request runs in which step depends on
lengths alone, and not on what a step costs. Between two events (a start or an end) the same
requests run, and steps differ only in the keys that they read. K intervals between events are kept
instead of steps, so memory and time grow with the number of requests N, and not with their lengths.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Real = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Requests:
    """N requests in the order in which an engine gets them."""

    prompts: Whole  # [N], tokens of each prompt
    responses: Whole  # [N], tokens of each response, at least 1
    fresh: NDArray[np.bool_]  # [N], false if an earlier request has computed the same prompt

    def __post_init__(self) -> None:
        assert self.prompts.shape == self.responses.shape == self.fresh.shape
        assert (self.responses >= 1).all()

    def __len__(self) -> int:
        return len(self.responses)

    def part(self, first: int, end: int) -> Requests:
        """Return the requests from `first` up to, but not including, `end`."""
        return Requests(self.prompts[first:end], self.responses[first:end], self.fresh[first:end])

    @property
    def keys(self) -> float:
        """Return the mean number of keys that a busy slot holds, over all decode steps."""
        fed = self.responses - 1
        held = fed * self.prompts + fed * (fed + 1) // 2
        return float(held.sum() / max(1, fed.sum()))


@dataclass(frozen=True)
class Occupancy:
    """What the slots do in each of K intervals, in order. Prompts are computed at its start."""

    steps: Whole  # [K]
    active: Whole  # [K], slots that decode
    keys: Real  # [K], that a step reads, the new ones included; their mean over the interval
    begun: Whole  # [K], requests that start
    prompts: Whole  # [K], prompts that are computed
    prompt_tokens: Whole  # [K]
    prompt_pairs: Whole  # [K], of a query and a key
    waiting: NDArray[np.bool_]  # [K], whether any request starts later


def occupancy(requests: Requests, slots: int) -> Occupancy:
    """Return what happens if an engine with `slots` slots answers the requests."""
    assert slots >= 1 and len(requests)
    decodes = requests.responses - 1
    begin = starts(np.maximum(decodes, 1), slots)
    ends = begin + np.maximum(decodes, 1)
    times, place = np.unique(np.concatenate([begin, ends]), return_inverse=True)
    first, last = place[: len(begin)], place[len(begin) :]
    count = len(times) - 1
    steps = np.diff(times)

    def at(where: Whole, weights: Whole | None = None) -> Whole:
        return np.bincount(where, weights, minlength=count + 1)[:count].astype(np.int64)

    runs = decodes > 0
    active = np.cumsum(at(first[runs]) - at(last[runs]))
    # In step t, a request that began in step s with a prompt of P tokens reads P + 1 + t - s keys.
    offset = (requests.prompts + 1 - begin)[runs]
    held = np.cumsum(at(first[runs], offset) - at(last[runs], offset))
    fresh = np.where(requests.fresh, requests.prompts, 0)
    return Occupancy(
        steps=steps,
        active=active,
        keys=held + active * (times[:-1] + (steps - 1) / 2),
        begun=at(first),
        prompts=at(first[requests.fresh]),
        prompt_tokens=at(first, fresh),
        prompt_pairs=at(first, fresh * (fresh + 1) // 2),
        waiting=times[:-1] < begin[-1],
    )


def starts(durations: Whole, slots: int) -> Whole:
    """Return the step in which each request starts: the earliest in which a slot is free."""
    begin = np.zeros(len(durations), np.int64)
    if len(durations) <= slots:
        return begin
    lengths = durations.tolist()
    ends = lengths[:slots]
    heapq.heapify(ends)
    replace = heapq.heapreplace
    late = []
    for length in lengths[slots:]:
        now = ends[0]
        late.append(now)
        replace(ends, now + length)
    begin[slots:] = late
    return begin
