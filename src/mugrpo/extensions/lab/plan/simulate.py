"""Continuous batching, request by request: how many slots are busy in every step.

An engine has a fixed number of slots. Requests start in order, each as soon as a slot is free. The
first token of a response comes out of the prefill of its prompt, and each of the others takes one
decode step. All busy slots make a step together, so which request runs in which step depends on
lengths alone, and not on what a step costs. Between two events (a start or an end) the same
requests run, and steps differ only in the keys that they read. K intervals between events are kept
instead of steps, so memory and time grow with the number of requests N, and not with their lengths.

A cache may have room for fewer tokens than the slots would hold. Then requests wait for room, and
if the sequences that run outgrow it, the newest of them is preempted, as vLLM does it: its cache is
dropped, and it goes on first, once there is room, by a prefill of its prompt and of the tokens that
it had.
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

    def part(self, chosen: slice) -> Requests:
        return Requests(self.prompts[chosen], self.responses[chosen], self.fresh[chosen])


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
    ended: Whole  # [K], requests that end with it
    waiting: NDArray[np.bool_]  # [K], whether any request starts later


def occupancy(requests: Requests, slots: int, room: float = float("inf")) -> Occupancy:
    """Return what happens if an engine with `slots` slots answers the requests.

    Its cache has room for `room` tokens, at least those of the longest request and its response.
    """
    assert slots >= 1 and len(requests)
    most = np.sort(requests.prompts + requests.responses)[-slots:].sum()
    done = np.ones(len(requests), bool)
    if most > room:
        requests, begin, done = preempted(requests, slots, room)
    else:
        begin = starts(np.maximum(requests.responses - 1, 1), slots)
    decodes = requests.responses - 1
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
        ended=at(last[done] - 1),
        waiting=times[:-1] < begin.max(),
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


def preempted(
    requests: Requests, slots: int, room: float
) -> tuple[Requests, Whole, NDArray[np.bool_]]:
    """Return requests cut where they are preempted, the step in which each part starts, its end.

    A part that goes on has the tokens before it as its prompt. The last array is true where a
    part ends its request. A prompt that an earlier request has computed takes no room again.
    """
    prompts, responses = requests.prompts.tolist(), requests.responses.tolist()
    fresh = requests.fresh.tolist()
    parts: list[tuple[int, int, bool, int, bool]] = []  # prompt, tokens, fresh, start, done
    back: list[tuple[int, int]] = []  # preempted: request, tokens that it had
    running: dict[int, tuple[int, int, int, int]] = {}  # start, tokens before it, held, end
    ends: list[tuple[int, int, int]] = []  # a heap: end, start, request
    following, now, offset = 0, 0, 0  # `offset` + running x now: the tokens that are held

    def leave(request: int, tokens: int) -> None:
        nonlocal offset
        start, had, held, _ = running.pop(request)
        offset -= held - start
        done = had + tokens == responses[request]
        computed = had > 0 or fresh[request]
        parts.append((prompts[request] + had, tokens, computed, start, done))
        if not done:
            back.append((request, had + tokens))

    while running or back or following < len(prompts):
        while len(running) < slots and (back or following < len(prompts)):
            request, had = back[-1] if back else (following, 0)
            held = prompts[request] + had if had or fresh[request] else 0
            if running and offset + (len(running) + 1) * (now + 1) - now + held > room:
                break  # no room for it and everybody's next token
            if back:
                back.pop()
            else:
                following += 1
            end = now + max(1, responses[request] - had - 1)
            running[request] = now, had, held, end
            offset += held - now
            heapq.heappush(ends, (end, now, request))
        while running.get(ends[0][2], (-1,))[0] != ends[0][1]:
            heapq.heappop(ends)  # it was preempted
        free = room - offset - len(running) * now
        if now + int(free // len(running)) >= ends[0][0] or len(running) == 1:
            now, _, request = heapq.heappop(ends)
            leave(request, responses[request] - running[request][1])
            continue
        now += int(free // len(running))
        while len(running) > 1 and offset + len(running) * (now + 1) > room:
            newest = next(reversed(running))
            leave(newest, now - running[newest][0] + 1)
    table = np.array([part[:2] for part in parts], np.int64)
    made = Requests(table[:, 0], table[:, 1], np.array([part[2] for part in parts]))
    start, done = (np.array([part[place] for part in parts]) for place in (3, 4))
    return made, start, done
