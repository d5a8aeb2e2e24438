"""The cut of an update's responses into micro-batches, by counting what goes through the model.

A micro-batch is computed in the cheaper of two ways: each response behind its own copy of the
prompt, padded; or each distinct prompt once and its responses on top of it, laid end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mugrpo.disk.records import Rollout

# A shared prompt's keys and values are copied for each response. Of what a token takes on its way
# through a layer (about 20 numbers kept for each of the hidden state's) a copy is two to three.
_COPY = 1 / 8


class Shape(NamedTuple):
    """What the cut has to know of a response."""

    prompt: bytes
    prompt_length: int
    response_length: int


@dataclass(frozen=True)
class Layout:
    """How responses are computed together, in tokens."""

    shared: bool
    computed: int  # go through the model and are no padding
    padded: int  # go through the model
    copied: int  # tokens of shared prompts, once for each response

    @property
    def cost(self) -> float:
        """Tokens through the model, or as good as."""
        return self.padded + _COPY * self.copied


def shape_of(rollout: Rollout) -> Shape:
    """Return what the cut has to know of `rollout`."""
    prompt = rollout.prompt_ids
    return Shape(prompt.tobytes(), len(prompt), len(rollout.response_ids))


def layout(shapes: Sequence[Shape], *, share: bool) -> Layout:
    """Return the cheaper way to compute responses together; prompts are shared if they may be."""
    prompts = [shape.prompt_length for shape in shapes]
    responses = [shape.response_length for shape in shapes]
    whole = max(p + r for p, r in zip(prompts, responses, strict=True))
    plain = Layout(False, sum(prompts) + sum(responses), len(shapes) * whole, 0)
    if not share:
        return plain
    distinct = {shape.prompt: shape.prompt_length for shape in shapes}
    # The last token of a response tells nothing.
    computed = sum(distinct.values()) + sum(responses) - len(shapes)
    shared = Layout(True, computed, computed, len(shapes) * max(prompts))
    return min(plain, shared, key=lambda way: way.cost)


def cut(shapes: Sequence[Shape], budget: int, *, share: bool) -> list[list[int]]:
    """Cut responses into micro-batches that cost `budget` at most; return their places in `shapes`.

    A single response over the budget stands alone.
    """
    if share:
        return split_by_prompt(shapes, budget)
    return split_by_tokens([s.prompt_length + s.response_length for s in shapes], budget)


def split_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut `lengths`, longest first, so that their number x the longest <= budget; return places.

    Equal lengths keep their order.
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
    """Cut responses, those of one prompt side by side, longest first; return places in `shapes`.

    A prompt's responses are cut only if they are over the budget by themselves.
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
