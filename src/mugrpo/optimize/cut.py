"""Cut an update's responses into micro-batches, by the tokens that go through the model.

A micro-batch is computed in the cheaper of two ways: each response after its own copy of the
prompt, padded; or each distinct prompt once, and the responses to it packed after it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mugrpo.disk.records import Rollout

# A shared prompt's keys and values are copied for each response. In a layer, a token's activations
# take about 20 times the hidden size; a copy of its keys and values takes two to three times.
_COPY = 1 / 8


@dataclass(frozen=True)
class Layout:
    """A way to compute responses together, and its cost in tokens."""

    shared: bool  # whether responses share prompts
    computed: int  # tokens through the model, without padding
    padded: int  # tokens through the model, with padding
    copied: int  # tokens of shared prompts, counted once for each response

    @property
    def cost(self) -> float:
        """Return the padded tokens plus a fraction (`_COPY`) of the copied ones."""
        return self.padded + _COPY * self.copied


class Size(NamedTuple):
    """What a response's cost depends on."""

    prompt: bytes  # the same for rollouts with the same prompt
    prompt_tokens: int
    response_tokens: int

    @classmethod
    def of(cls, rollout: Rollout) -> Size:
        return cls(prompt_key(rollout), len(rollout.prompt_ids), len(rollout.response_ids))


def layout(rollouts: Sequence[Rollout], *, share: bool) -> Layout:
    """Return the cheapest way to compute responses together; `share` allows sharing prompts."""
    sizes = [Size.of(rollout) for rollout in rollouts]
    distinct = {prompt: p for prompt, p, _ in sizes}
    return cheapest(
        len(sizes),
        prompts=sum(p for _, p, _ in sizes),
        responses=sum(t for *_, t in sizes),
        longest=max(p + t for _, p, t in sizes),
        distinct=distinct.values() if share else (),
    )


def cheapest(
    count: int, *, prompts: int, responses: int, longest: int, distinct: Collection[int]
) -> Layout:
    """Return the cheapest way to compute `count` responses together.

    `prompts` and `responses` are their tokens in all, `longest` those of the longest prompt with
    its response, `distinct` those of each distinct prompt, or empty if none may be shared.
    """
    plain = Layout(False, prompts + responses, count * longest, 0)
    if not distinct:
        return plain
    # Nothing is predicted from a response's last token, so it need not be computed.
    computed = sum(distinct) + responses - count
    shared = Layout(True, computed, computed, count * max(distinct))
    return shared if shared.cost < plain.cost else plain


def prompt_key(rollout: Rollout) -> bytes:
    """Return a key that is the same for rollouts with the same prompt."""
    return rollout.prompt_ids.tobytes()


def grouped_by_prompt(rollouts: Sequence[Rollout]) -> list[list[int]]:
    """Return the places of the responses to each prompt, longest responses first."""
    groups: dict[bytes, list[int]] = {}
    for place in sorted(range(len(rollouts)), key=lambda i: -len(rollouts[i].response_ids)):
        groups.setdefault(prompt_key(rollouts[place]), []).append(place)
    return list(groups.values())


def cut(rollouts: Sequence[Rollout], budget: int, *, share: bool) -> list[list[int]]:
    """Return micro-batches that cost at most `budget` tokens, as lists of places in `rollouts`.

    A response that exceeds the budget by itself gets a micro-batch of its own.
    """
    if share:
        return split_by_prompt(rollouts, budget)
    return split_by_tokens([len(r.prompt_ids) + len(r.response_ids) for r in rollouts], budget)


def split_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut `lengths`, longest first, into parts that cost at most `budget`.

    A part costs its number of lengths x its longest. A length above the budget is a part of its
    own. Return the parts as lists of places in `lengths`. Equal lengths keep their order.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    parts: list[list[int]] = []
    for index in order:
        if parts and (len(parts[-1]) + 1) * lengths[parts[-1][0]] <= budget:
            parts[-1].append(index)
        else:
            parts.append([index])
    return parts


def split_by_prompt(rollouts: Sequence[Rollout], budget: int) -> list[list[int]]:
    """Cut responses into parts that keep the responses to a prompt together, longest first.

    Return the parts as lists of places in `rollouts`. The responses to a prompt are split only if
    they exceed the budget by themselves.
    """

    def fits(part: list[int]) -> bool:
        return layout([rollouts[i] for i in part], share=True).cost <= budget

    parts: list[list[int]] = [[]]
    for group in grouped_by_prompt(rollouts):
        if fits(parts[-1] + group):
            parts[-1] += group
            continue
        pieces = [group] if fits(group) else [[index] for index in group]
        parts.append([])
        for piece in pieces:
            if parts[-1] and not fits(parts[-1] + piece):
                parts.append([])
            parts[-1] += piece
    return [part for part in parts if part]


# Cut an update's responses into rounds of micro-batches that keep all ranks busy.
#
# Ranks gather the weights together, so a round of one micro-batch per rank takes as long as its
# most expensive one. Micro-batches of equal work waste nothing. Work is counted as in
# benchmarks/README.md. A micro-batch is limited by memory, which `Layout.cost` estimates.


# The responses to a prompt are divided into pieces of at most such a share of a mean micro-batch,
# the first share with which they fit: the prompt is computed for each piece.
_SHARES = (1.0, 1 / 2, 1 / 4, 0.0)
_HALVINGS = 20  # of the interval that contains the least limit of work, when rows are padded


@dataclass(frozen=True)
class Price:
    """The operations of a model's parts, as multiples of a token's in its linear layers."""

    logit: float = 0.0  # a response token's logits
    pair: float = 0.0  # a query with a key that it attends to, in all layers

    @classmethod
    def of(cls, model: Any) -> Price:
        """Return a Hugging Face model's prices: E / W and 2 N h d / W (benchmarks/README.md).

        W is the size of all matrices but embeddings and head. If the config does not tell the
        number of heads, pairs are free.
        """
        config, head = model.config.get_text_config(), model.get_output_embeddings().weight
        outside = {id(head), id(model.get_input_embeddings().weight)}
        inside = [p for p in model.parameters() if p.ndim >= 2 and id(p) not in outside]
        weights = sum(p.numel() for p in inside)
        heads = getattr(config, "num_attention_heads", None) or 0
        width = heads * (getattr(config, "head_dim", None) or config.hidden_size // max(heads, 1))
        return cls(head.numel() / weights, 2 * config.num_hidden_layers * width / weights)


def work(rollouts: Sequence[Rollout], price: Price, *, share: bool) -> float:
    """Return the operations of a micro-batch, as a number of tokens through the linear layers."""
    meter = _Meter([Size.of(rollout) for rollout in rollouts], 0, share, price)
    return meter.work(list(range(len(rollouts))))


def rounds(
    rollouts: Sequence[Rollout], budget: int, *, share: bool, ranks: int, price: Price
) -> list[list[int]]:
    """Return micro-batches that cost at most `budget` tokens, as lists of places in `rollouts`.

    Every `ranks` of them in order are a round. Their work descends, so the last is the cheapest.
    For one rank they are those of `cut`. For more, there are as few rounds as it takes, and work is
    about equal within them. A response that exceeds the budget by itself gets a micro-batch of its
    own.
    """
    parts = cut(rollouts, budget, share=share)
    if ranks == 1 or not parts:
        return parts
    meter = _Meter([Size.of(rollout) for rollout in rollouts], budget, share, price)
    number = math.ceil(len(parts) / ranks) * ranks
    if share:
        groups = grouped_by_prompt(rollouts)
        while not (placed := _placed_by_prompt(meter, groups, number)):
            number += ranks
    else:
        placed = _placed_by_length(meter, number)

    placed = meter.descending(placed)
    evened = meter.descending(_evened(meter, placed, ranks))
    # With long prompts and a small budget, equal pieces compute prompts so often that the plain cut
    # takes less time: 1.04 times the ideal instead of 1.33 on eight ranks.
    cuts = (meter.descending(parts), placed, evened)
    return min(cuts, key=lambda parts: sum(map(meter.work, parts[::ranks])))


class _Meter:
    """The work and the memory of micro-batches, which are lists of places in `sizes`.

    It is asked for them ten times as often as there are responses, so it counts in one loop.
    """

    def __init__(self, sizes: Sequence[Size], budget: int, share: bool, price: Price) -> None:
        self.sizes, self.budget = sizes, budget
        self._share, self._price = share, price
        numbers: dict[bytes, int] = {}
        self._rows = [  # the prompt's number, its tokens, the response's, and their pairs
            (numbers.setdefault(prompt, len(numbers)), p, t, (t - 1) * p + _causal(t - 1))
            for prompt, p, t in sizes
        ]

    def measured(self, part: Sequence[int]) -> tuple[float, bool]:
        """Return a micro-batch's work, and whether it fits; a single response always does."""
        prompts = responses = longest = pairs = 0
        distinct: dict[int, int] = {}
        for place in part:
            number, p, t, own = self._rows[place]
            prompts += p
            responses += t
            pairs += own
            distinct[number] = p
            longest = max(longest, p + t)
        chosen = cheapest(
            len(part),
            prompts=prompts,
            responses=responses,
            longest=longest,
            distinct=distinct.values() if self._share else (),
        )
        if chosen.shared:
            pairs += sum(map(_causal, distinct.values()))
        else:
            pairs = len(part) * _causal(longest)
        work = chosen.padded + self._price.logit * responses + self._price.pair * pairs
        return work, len(part) == 1 or chosen.cost <= self.budget

    def work(self, part: Sequence[int]) -> float:
        return self.measured(part)[0]

    def fits(self, part: Sequence[int]) -> bool:
        return self.measured(part)[1]

    def descending(self, parts: list[list[int]]) -> list[list[int]]:
        return sorted(parts, key=lambda part: (-self.work(part), part))


def _placed_by_length(meter: _Meter, number: int) -> list[list[int]]:
    """Cut by length into at most `number` parts, and make the largest part as small as possible."""
    order = sorted(range(len(meter.sizes)), key=lambda i: -sum(meter.sizes[i][1:]))
    low, high = 0.0, meter.work(order)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if len(_divided(meter, order, middle)) <= number:
            high = middle
        else:
            low = middle
    return _divided(meter, order, high)


def _placed_by_prompt(meter: _Meter, groups: list[list[int]], number: int) -> list[list[int]]:
    """Return at most `number` parts with the largest pieces of groups that fit, [] if none do.

    The piece with the most work goes to the least busy part, then the next.
    """
    mean = sum(map(meter.work, groups)) / number
    for share in _SHARES:
        pieces = [piece for group in groups for piece in _divided(meter, group, share * mean)]
        loads = sorted(((meter.work(p), p) for p in pieces), key=lambda load: (-load[0], load[1]))
        parts: list[tuple[float, int, list[int]]] = [(0.0, i, []) for i in range(number)]
        for load, piece in loads:
            busy, index, part = parts[0]
            if not meter.fits(part + piece):
                break
            heapq.heapreplace(parts, (busy + load, index, part + piece))
        else:
            return [part for *_, part in parts if part]
    return []


def _divided(meter: _Meter, places: list[int], most: float) -> list[list[int]]:
    """Divide `places`, in order, into pieces that fit and have at most `most` work.

    A response with more work is a piece of its own.
    """
    pieces = [places[:1]]
    for place in places[1:]:
        work, fits = meter.measured([*pieces[-1], place])
        if work <= most and fits:
            pieces[-1].append(place)
        else:
            pieces.append([place])
    return pieces


def _evened(meter: _Meter, parts: list[list[int]], ranks: int) -> list[list[int]]:
    """Move responses, one at a time, from the busiest part to the least busy; return the parts.

    The work of `parts` descends. A round that takes longer than the last, for a long response, may
    go on doing so in all its parts: the difference does not count as busy. A move must lower the
    busier of the two parts by a thousandth of the last round.
    """
    parts, works = list(parts), [meter.work(part) for part in parts]
    last = works[(len(works) - 1) // ranks * ranks]
    allowed = [works[i // ranks * ranks] - last for i in range(len(parts))]
    busy = [work - more for work, more in zip(works, allowed, strict=True)]
    left = set(range(len(parts)))  # parts that may still give a response
    while left:
        most = max(left, key=lambda i: (busy[i], -i))
        least = min(range(len(busy)), key=lambda i: (busy[i], i))
        moves = []
        for place in parts[most] if len(parts[most]) > 1 else []:
            given, taken = [i for i in parts[most] if i != place], [*parts[least], place]
            work, fits = meter.measured(taken)
            if fits:
                after = meter.work(given) - allowed[most], work - allowed[least]
                moves.append((max(after), after, given, taken))
        if not moves or min(moves)[0] > busy[most] - last / 1000:
            left.remove(most)
            continue
        _, (busy[most], busy[least]), parts[most], parts[least] = min(moves)
    return parts


def _causal(length: int) -> int:
    """Return the pairs of causal attention over `length` tokens."""
    return length * (length + 1) // 2
