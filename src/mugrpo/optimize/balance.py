"""Cut an update's responses into rounds of micro-batches that keep all ranks busy.

Ranks gather the weights together, so a round of one micro-batch per rank takes as long as its most
expensive one. Micro-batches of equal work waste nothing. Work is counted as in
benchmarks/README.md. A micro-batch is limited by memory, which `Layout.cost` estimates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mugrpo.disk.records import Rollout
from mugrpo.optimize.cut import Size, cheapest, cut, grouped_by_prompt

_HALVINGS = 8  # of the interval that contains the least limit


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
    part = _Part(price, share)
    for place, rollout in enumerate(rollouts):
        part.takes(place, Size.of(rollout))
    return part.work


def rounds(
    rollouts: Sequence[Rollout], budget: int, *, share: bool, ranks: int, price: Price
) -> list[list[int]]:
    """Return micro-batches that cost at most `budget` tokens, as lists of places in `rollouts`.

    Every `ranks` of them in order are a round. Their work descends, so the last is the cheapest.
    For one rank they are those of `cut`. For more, there are as few rounds as the budget allows, or
    one more if that takes less time. A response that exceeds the budget by itself gets a
    micro-batch of its own.
    """
    if ranks == 1 or not rollouts:
        return cut(rollouts, budget, share=share)
    sizes = [Size.of(rollout) for rollout in rollouts]
    # Rows of one length are padded least, and the responses to one prompt share it.
    by_length = sorted(range(len(sizes)), key=lambda i: -sum(sizes[i][1:]))
    groups = grouped_by_prompt(rollouts) if share else [[place] for place in by_length]

    def filled(most: float) -> list[_Part]:
        """Fill one micro-batch after the other, longest responses of a group first."""
        parts = [_Part(price, share, budget, most)]
        for group in groups:
            while group := [i for i in group if not parts[-1].takes(i, sizes[i])]:
                parts.append(_Part(price, share, budget, most))
        return parts

    def evenest(number: int) -> list[_Part]:
        """Return at most `number` micro-batches, and bisect the least limit of their work."""
        parts = filled(math.inf)
        least, most = sum(part.work for part in parts) / number, max(part.work for part in parts)
        for _ in range(_HALVINGS):
            middle = (least + most) / 2
            if len(tried := filled(middle)) <= number:
                parts, most = tried, middle
            else:
                least = middle
        return sorted(parts, key=lambda part: (-part.work, part.places))

    number = math.ceil(len(filled(math.inf)) / ranks) * ranks
    both = evenest(number), evenest(number + ranks)
    best = min(both, key=lambda parts: sum(part.work for part in parts[::ranks]))
    return [part.places for part in best]


class _Part:
    """A micro-batch to be filled: the places of its responses, and its work.

    It costs at most `budget` and has at most `most` work, unless it is a single response.
    """

    def __init__(
        self, price: Price, share: bool, budget: float = math.inf, most: float = math.inf
    ) -> None:
        self.places: list[int] = []
        self.work = 0.0
        self._price, self._share, self._budget, self._most = price, share, budget, most
        self._distinct: dict[bytes, int] = {}  # each prompt's tokens
        self._sums = 0, 0, 0, 0  # tokens of prompts, responses, the longest row; pairs, if shared

    def takes(self, place: int, size: Size) -> bool:
        """Add the response at `place` and return True, or return False if it does not fit."""
        prompt, p, t = size
        prompts, responses, longest, pairs = self._sums
        count, distinct = len(self.places) + 1, self._distinct | {prompt: p}
        prompts, responses, longest = prompts + p, responses + t, max(longest, p + t)
        pairs += _causal(p + t - 1) - (_causal(p) if prompt in self._distinct else 0)
        chosen = cheapest(
            count,
            prompts=prompts,
            responses=responses,
            longest=longest,
            distinct=distinct.values() if self._share else (),
        )
        attended = pairs if chosen.shared else count * _causal(longest)
        work = chosen.padded + self._price.logit * responses + self._price.pair * attended
        if self.places and (chosen.cost > self._budget or work > self._most):
            return False
        self.places.append(place)
        self.work, self._distinct = work, distinct
        self._sums = prompts, responses, longest, pairs
        return True


def _causal(length: int) -> int:
    """Return the pairs of causal attention over `length` tokens."""
    return length * (length + 1) // 2
