"""Cut an update's responses into micro-batches, by the tokens that go through the model.

A micro-batch is computed in the cheaper of two ways: each response after its own copy of the
prompt, padded; or each distinct prompt once, and the responses to it packed after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mugrpo.disk.records import Rollout

# A shared prompt's keys and values are copied for each response. For each number of the hidden
# state, a token keeps about 20 numbers in a layer; its copied keys and values are two to three.
_COPY = 1 / 8


class Shape(NamedTuple):
    """What the cut needs to know about a response."""

    prompt: bytes
    prompt_length: int
    response_length: int


@dataclass(frozen=True)
class Layout:
    """How responses are computed together, and what that costs in tokens."""

    shared: bool  # whether responses share prompts
    computed: int  # tokens through the model, without padding
    padded: int  # tokens through the model, with padding
    copied: int  # tokens of shared prompts, counted once for each response

    @property
    def cost(self) -> float:
        """Return the tokens through the model; a copy counts as the share of a token it costs."""
        return self.padded + _COPY * self.copied


def shape_of(rollout: Rollout) -> Shape:
    """Return what the cut needs to know about `rollout`."""
    prompt = rollout.prompt_ids
    return Shape(prompt.tobytes(), len(prompt), len(rollout.response_ids))


def layout(shapes: Sequence[Shape], *, share: bool) -> Layout:
    """Return the cheapest way to compute responses together; `share` allows sharing prompts."""
    prompts = [shape.prompt_length for shape in shapes]
    responses = [shape.response_length for shape in shapes]
    longest = max(p + r for p, r in zip(prompts, responses, strict=True))
    plain = Layout(False, sum(prompts) + sum(responses), len(shapes) * longest, 0)
    if not share:
        return plain
    distinct = {shape.prompt: shape.prompt_length for shape in shapes}
    # Nothing is predicted from a response's last token, so it need not be computed.
    computed = sum(distinct.values()) + sum(responses) - len(shapes)
    shared = Layout(True, computed, computed, len(shapes) * max(prompts))
    return min(plain, shared, key=lambda way: way.cost)


def cut(shapes: Sequence[Shape], budget: int, *, share: bool) -> list[list[int]]:
    """Return micro-batches that cost at most `budget` tokens, as lists of places in `shapes`.

    A response that exceeds the budget by itself gets a micro-batch of its own.
    """
    if share:
        return split_by_prompt(shapes, budget)
    return split_by_tokens([s.prompt_length + s.response_length for s in shapes], budget)


def split_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut `lengths`, longest first, into parts whose number x longest is at most `budget`.

    Return the parts as lists of places in `lengths`. Equal lengths keep their order.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    parts: list[list[int]] = []
    for index in order:
        if parts and (len(parts[-1]) + 1) * lengths[parts[-1][0]] <= budget:
            parts[-1].append(index)
        else:
            parts.append([index])
    return parts


def split_by_prompt(shapes: Sequence[Shape], budget: int) -> list[list[int]]:
    """Cut responses into parts that keep the responses to a prompt together, longest first.

    Return the parts as lists of places in `shapes`. The responses to a prompt are split only if
    they exceed the budget by themselves.
    """

    def fits(part: list[int]) -> bool:
        return layout([shapes[i] for i in part], share=True).cost <= budget

    groups: dict[bytes, list[int]] = {}
    for index in sorted(range(len(shapes)), key=lambda i: -shapes[i].response_length):
        groups.setdefault(shapes[index].prompt, []).append(index)
    parts: list[list[int]] = [[]]
    for group in groups.values():
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
