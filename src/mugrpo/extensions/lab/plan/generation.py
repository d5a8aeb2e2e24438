"""Seconds in which engines generate a stage: a roofline for each step of the simulation.

A decode step reads the weights once and each sequence's cache, and makes the products that
`counts` counts. The slower of the two counts (Williams et al. 2009), beside an overhead. With
tensor parallelism, operations and bytes are divided among the GPUs, which add up two activations
for each layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.lab.plan.counts import Shape
from mugrpo.extensions.lab.plan.machine import Machine
from mugrpo.extensions.lab.plan.simulate import Occupancy, Real, Requests, Whole, occupancy

SIMULATED = 1 << 17  # rollouts of a stage that are simulated; more are extrapolated


@dataclass(frozen=True)
class Engines:
    """Engines side by side, and how they get a stage's requests."""

    count: int
    slots: int  # sequences that each decodes together
    tensor_parallel: int  # GPUs of each
    groups: int  # of a shard
    streams: bool  # whether an engine begins the next piece before the last response ends
    share: float  # of a GPU's memory that it takes, or of a CPU's; 0 if its cache has no limit
    static: bool = False  # whether it decodes batches that end with their longest response

    def pieces(self, groups: int) -> int:
        """Return the groups of a piece of a stage with `groups` groups.

        A piece is a shard, or its part if there are fewer shards than engines.
        """
        shards = -(-groups // self.groups)
        return -(-min(self.groups, groups) // -(-self.count // shards))


@dataclass(frozen=True)
class Generated:
    """The seconds of a stage's generation, and those at its end in which slots fall idle."""

    seconds: float
    tail: float  # of `seconds`: after an engine's last waiting request has begun, on average
    ends: Real  # [rollouts], seconds after which each response has ended, ascending


@dataclass(frozen=True)
class EnginePrices:
    """What engines' work costs with a model of `shape`, whose numbers have `each` bytes."""

    shape: Shape
    machine: Machine
    precision: str
    tensor_parallel: int = 1
    factor: float = 1.0  # measured seconds as a multiple of the counted ones
    adapter: int = 0  # parameters of an adapter beside the model
    quantized: bool = False  # whether the layers' weights, not the head's, are read in 8 bits

    @property
    def each(self) -> int:
        return 2 if self.precision == "bf16" else 4

    def size(self, weights: int) -> int:
        """Return the bytes of so many weights, those of the layers among them."""
        return self.each * weights - self.quantized * (self.each - 1) * self.shape.linear_parameters

    def seconds(self, occupied: Occupancy) -> Real:
        """Return the seconds of each interval, [K]."""
        decode = occupied.steps * self.step(occupied.active, occupied.keys)
        return self.factor * (decode + self._begin(occupied))

    def step(self, active: Whole, keys: Real) -> Real:
        """Return the seconds of a step that decodes `active` sequences, 0 if there are none."""
        shape, overheads = self.shape, self.machine.overheads
        weights = shape.linear_parameters + shape.hidden * shape.vocab + self.adapter
        flop = 2.0 * weights * active + shape.attention_flop(1.0) * keys
        size = self.size(weights) + shape.kv_bytes(1.0, self.each) * (keys + active)
        seconds = np.maximum(flop / self._operations, size / self._bytes) + self._summed(active)
        seconds = seconds + overheads.step + overheads.sequence * active + overheads.key * keys
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
        if self.tensor_parallel == 1:
            return np.zeros(len(tokens))
        one = 2.0 * self.shape.layers * self.shape.hidden * self.each
        one *= 2 * (self.tensor_parallel - 1) / self.tensor_parallel
        return one * tokens / (self.machine.rates.link * self.machine.shares.link)

    @property
    def _operations(self) -> float:
        rate = self.machine.operations(self.precision) * self.machine.shares.decode
        return rate * self.tensor_parallel

    @property
    def _bytes(self) -> float:
        return self.machine.rates.memory * self.machine.shares.memory * self.tensor_parallel


def room(engines: Engines, prices: EnginePrices, longest: int) -> float:
    """Return the tokens that an engine's cache has room for; infinity if it has no limit.

    Activations and compiled graphs are not counted. Raises UsageError if the weights, or one
    response of `longest` tokens, do not fit.
    """
    if not engines.share:
        return float("inf")
    memory = engines.share * prices.machine.memory_gib * 2**30 * engines.tensor_parallel
    weights = prices.size(prices.shape.parameters)
    tokens = (memory - weights) / prices.shape.kv_bytes(1.0, prices.each)
    if tokens < longest:
        raise UsageError(
            f"the model's weights ({weights / 2**30:.1f} GiB) and a response of {longest:,} tokens "
            f"do not fit into an engine's {memory / 2**30:.1f} GiB; raise "
            "--engine.tensor_parallel, use --model.precision bf16, or choose a --machine with more "
            "memory"
        )
    return tokens


def requests_of(prompts: Whole, responses: Whole) -> Requests:
    """Return the requests for groups: prompts [D], responses [D, G]. A group shares its prompt."""
    fresh = np.zeros(responses.shape, bool)
    fresh[:, 0] = True
    every = np.broadcast_to(prompts[:, None], responses.shape).ravel()
    return Requests(every, responses.ravel(), fresh.ravel())


def generate(prompts: Whole, responses: Whole, engines: Engines, prices: EnginePrices) -> Generated:
    """Return how long engines take for the groups: prompts [D], responses [D, G].

    Of a stage with more than SIMULATED rollouts, so many are simulated, and half as many; what the
    second half adds goes on at the same pace. With a cache that is too small, which takes longer
    to simulate, an eighth is.
    """
    size = responses.shape[1]
    limit = room(engines, prices, int((prompts + responses.max(axis=1)).max()))
    tight = limit < engines.slots * float(responses.mean())
    most = max(2, (SIMULATED >> 3 if tight else SIMULATED) // size)
    if len(prompts) > most:
        whole = generate(prompts[:most], responses[:most], engines, prices)
        half = generate(prompts[: most // 2], responses[: most // 2], engines, prices)
        more = (whole.seconds - half.seconds) / (most - most // 2) * (len(prompts) - most)
        middle = len(whole.ends) // 2
        between = whole.ends[middle] + np.linspace(0, more, (len(prompts) - most) * size)
        ends = (whole.ends[:middle], between, whole.ends[middle:] + more)
        return Generated(whole.seconds + more, whole.tail, np.concatenate(ends))
    requests = requests_of(prompts, responses)
    piece = engines.pieces(len(prompts)) * size
    pieces = [requests.part(np.s_[i : i + piece]) for i in range(0, len(requests), piece)]
    if engines.static:
        pieces = [_static(part) for part in pieces]
    run = _streamed if engines.streams else _piece_by_piece
    return run(pieces, engines.count, lambda part: _priced(part, engines.slots, limit, prices))


@dataclass(frozen=True)
class _Priced:
    """The seconds of an engine's requests, and those in which a request waits."""

    seconds: float
    full: float
    ends: Real  # [requests]


def _streamed(
    pieces: list[Requests], count: int, priced: Callable[[Requests], _Priced]
) -> Generated:
    """Return the seconds of engines that get every `count`-th piece as one stream."""
    streams = [_joined(pieces[i::count]) for i in range(min(count, len(pieces)))]
    made = [priced(stream) for stream in streams]
    return _together([one.seconds for one in made], sum(one.full for one in made), count, made)


def _piece_by_piece(
    pieces: list[Requests], count: int, priced: Callable[[Requests], _Priced]
) -> Generated:
    """Return the seconds of engines that take the next piece when the one before has ended."""
    ends, made = [0.0] * count, []
    for piece in pieces:
        engine, one = ends.index(min(ends)), priced(piece)
        made.append(replace(one, ends=one.ends + ends[engine]))
        ends[engine] += one.seconds
    return _together(ends, sum(one.full for one in made), count, made)


def _together(seconds: list[float], full: float, count: int, made: list[_Priced]) -> Generated:
    longest = max(seconds)
    ends = np.sort(np.concatenate([one.ends for one in made]))
    return Generated(longest, longest - full / count, ends)


def _joined(pieces: list[Requests]) -> Requests:
    return Requests(
        np.concatenate([piece.prompts for piece in pieces]),
        np.concatenate([piece.responses for piece in pieces]),
        np.concatenate([piece.fresh for piece in pieces]),
    )


def _static(batch: Requests) -> Requests:
    """Return what a batch costs that computes every row, from its own prompt, to the longest."""
    longest = np.full_like(batch.responses, batch.responses.max())
    return Requests(batch.prompts, longest, np.ones_like(batch.fresh))


def _priced(requests: Requests, slots: int, limit: float, prices: EnginePrices) -> _Priced:
    occupied = occupancy(requests, slots, limit)
    seconds = prices.seconds(occupied)
    ends = np.repeat(np.cumsum(seconds), occupied.ended)
    return _Priced(float(seconds.sum()), float(seconds[occupied.waiting].sum()), ends)
