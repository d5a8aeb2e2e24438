"""Seconds in which engines generate a stage: request by request, with a roofline for each step.

An engine has a fixed number of slots. Requests start in order, each as soon as a slot is free. The
first token of a response comes out of the prefill of its prompt, and each of the others takes one
decode step. All busy slots make a step together, so which request runs in which step depends on
lengths alone, and not on what a step costs. Between two events (a start or an end) the same
requests run, and steps differ only in the keys that they read. So K intervals between events are
kept instead of steps.

A decode step reads the weights once and each sequence's cache, and makes the products that `Shape`
counts. The slower of the two counts (Williams et al. 2009), beside an overhead. With tensor
parallelism, operations and bytes are divided among the GPUs, which add up two activations for each
layer.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.lab.plan.counts import Shape
from mugrpo.extensions.lab.plan.machine import Machine

Whole = NDArray[np.int64]
Real = NDArray[np.floating[Any]]


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


def occupancy(prompts: Whole, responses: Whole, slots: int) -> Occupancy:
    """Return what happens if an engine with `slots` slots answers groups of requests, in order.

    Prompts are [D], responses [D, G]. A group's prompt is computed once, for its first request.
    """
    size = responses.shape[1]
    own, decodes = np.repeat(prompts, size), responses.ravel() - 1
    fresh = np.arange(len(own)) % size == 0
    begin = starts(np.maximum(decodes, 1), slots)
    ends = begin + np.maximum(decodes, 1)
    times, index = np.unique(np.concatenate([begin, ends]), return_inverse=True)
    first, last = index[: len(begin)], index[len(begin) :]
    count, steps = len(times) - 1, np.diff(times)

    def at(where: Whole, weights: Whole | None = None) -> Whole:
        return np.bincount(where, weights, minlength=count + 1)[:count].astype(np.int64)

    runs = decodes > 0
    active = np.cumsum(at(first[runs]) - at(last[runs]))
    # In step t, a request that began in step s with a prompt of P tokens reads P + 1 + t - s keys.
    offset = (own + 1 - begin)[runs]
    read = np.cumsum(at(first[runs], offset) - at(last[runs], offset))
    computed = np.where(fresh, own, 0)
    return Occupancy(
        steps=steps,
        active=active,
        keys=read + active * (times[:-1] + (steps - 1) / 2),
        begun=at(first),
        prompts=at(first[fresh]),
        prompt_tokens=at(first, computed),
        prompt_pairs=at(first, computed * (computed + 1) // 2),
        waiting=times[:-1] < begin.max(),
    )


def starts(durations: Whole, slots: int) -> Whole:
    """Return the step in which each request starts: the earliest in which a slot is free."""
    begin = np.zeros(len(durations), np.int64)
    ends = durations[:slots].tolist()
    heapq.heapify(ends)
    for request in range(slots, len(durations)):
        begin[request] = ends[0]
        heapq.heapreplace(ends, ends[0] + int(durations[request]))
    return begin


@dataclass(frozen=True)
class Engines:
    """Engines side by side, and how they get a stage's requests."""

    count: int
    slots: int  # sequences that each decodes together
    tensor_parallel: int  # GPUs of each
    share: float  # of a GPU's memory that it takes; 0 if its cache has no limit


@dataclass(frozen=True)
class Generated:
    """The seconds of a stage's generation, and those at its end in which slots fall idle."""

    seconds: float
    tail: float  # of `seconds`: after an engine's last waiting request has begun, on average


@dataclass(frozen=True)
class EnginePrices:
    """What engines' work costs with a model of `shape`, whose numbers have `each` bytes."""

    shape: Shape
    machine: Machine
    precision: str
    tensor_parallel: int = 1
    adapter: int = 0  # parameters of an adapter beside the model

    @property
    def each(self) -> int:
        return 2 if self.precision == "bf16" else 4

    def seconds(self, occupied: Occupancy) -> Real:
        """Return the seconds of each interval, [K]."""
        return occupied.steps * self.step(occupied.active, occupied.keys) + self._begin(occupied)

    def step(self, active: Whole, keys: Real) -> Real:
        """Return the seconds of a step that decodes `active` sequences, 0 if there are none."""
        shape, overheads, machine = self.shape, self.machine.overheads, self.machine
        weights = shape.linear_parameters + shape.hidden * shape.vocab + self.adapter
        flop = 2.0 * weights * active + shape.attention_flop(1.0) * keys
        size = self.each * weights + shape.kv_bytes(1.0, self.each) * (keys + active)
        rate = machine.rates.memory * machine.shares.memory * self.tensor_parallel
        seconds = np.maximum(flop / self._operations, size / rate) + self._summed(active)
        seconds = seconds + overheads.step + overheads.sequence * active
        return np.where(active > 0, seconds, 0.0)

    def _begin(self, occupied: Occupancy) -> Real:
        """Return the seconds of what happens at the beginning of each interval, [K]."""
        shape = self.shape
        flop = 2.0 * (shape.linear_parameters + self.adapter) * occupied.prompt_tokens
        flop += shape.attention_flop(1.0) * occupied.prompt_pairs
        flop += shape.logits_flop(1.0) * occupied.prompts
        seconds = flop / self._operations + self._summed(occupied.prompt_tokens)
        return seconds + self.machine.overheads.request * occupied.begun

    def _summed(self, tokens: Whole) -> Real:
        """Return the seconds in which GPUs add up two activations of each layer."""
        one = 2.0 * self.shape.layers * self.shape.hidden * self.each
        one *= 2 * (self.tensor_parallel - 1) / self.tensor_parallel
        return one * tokens / (self.machine.rates.link * self.machine.shares.link)

    @property
    def _operations(self) -> float:
        rate = self.machine.operations(self.precision) * self.machine.shares.decode
        return rate * self.tensor_parallel


def cache_tokens(engines: Engines, prices: EnginePrices, longest: int) -> float:
    """Return the tokens that an engine's cache has room for; infinity if it has no limit.

    Activations and compiled graphs are not counted. Raises UsageError if the weights, or one
    response of `longest` tokens, do not fit.
    """
    if not engines.share:
        return float("inf")
    memory = engines.share * prices.machine.memory_gib * 2**30 * engines.tensor_parallel
    weights = float(prices.each * prices.shape.parameters)
    tokens = (memory - weights) / prices.shape.kv_bytes(1.0, prices.each)
    if tokens < longest:
        raise UsageError(
            f"the model's weights ({weights / 2**30:.1f} GiB) and a response of {longest:,} tokens "
            f"do not fit into an engine's {memory / 2**30:.1f} GiB; raise "
            "--engine.tensor_parallel, use --model.precision bf16, or choose a --machine with more "
            "memory"
        )
    return tokens


def generate(prompts: Whole, responses: Whole, engines: Engines, prices: EnginePrices) -> Generated:
    """Return how long engines take for the groups: prompts [D], responses [D, G].

    A cache that is too small for all slots decodes as many sequences as it has room for at their
    mean length; vLLM's preemption, which costs more, is left out. Each engine gets every `count`-th
    group.
    """
    size = responses.shape[1]
    limit = cache_tokens(engines, prices, int((prompts + responses.max(axis=1)).max()))
    mean = float((prompts / size + responses.mean(axis=1)).mean())
    slots = max(1, int(min(engines.slots, limit / mean)))
    seconds, full = [], 0.0
    for engine in range(min(engines.count, len(prompts))):
        own = np.s_[engine :: engines.count]
        occupied = occupancy(prompts[own], responses[own], slots)
        spent = prices.seconds(occupied)
        seconds.append(float(spent.sum()))
        full += float(spent[occupied.waiting].sum())
    return Generated(max(seconds), max(seconds) - full / engines.count)
