"""The cut of an update's responses into micro-batches, by counting what goes through the model.

A micro-batch is computed in the cheaper of two ways: each response behind its own copy of the
prompt, padded; or each distinct prompt once and its responses on top of it, laid end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# A shared prompt's keys and values are copied for each response. Of what a token takes on its way
# through a layer (about 20 numbers kept for each of the hidden state's) a copy is two to three.
_COPY = 1 / 8


class Row(NamedTuple):
    """What the cut has to know of a response."""

    prompt: bytes
    prompt_length: int
    response_length: int


@dataclass(frozen=True)
class Layout:
    """How rows are computed together, in tokens."""

    shared: bool
    computed: int  # go through the model and are no padding
    padded: int  # go through the model
    copied: int  # tokens of shared prompts, once for each row

    @property
    def cost(self) -> float:
        """Tokens through the model, or as good as."""
        return self.padded + _COPY * self.copied


def layout(rows: Sequence[Row], *, share: bool) -> Layout:
    """The cheaper way to compute `rows`, where prompts may be shared."""
    prompts = [row.prompt_length for row in rows]
    responses = [row.response_length for row in rows]
    whole = max(p + r for p, r in zip(prompts, responses, strict=True))
    plain = Layout(False, sum(prompts) + sum(responses), len(rows) * whole, 0)
    if not share:
        return plain
    distinct = {row.prompt: row.prompt_length for row in rows}
    # The last token of a response tells nothing.
    computed = sum(distinct.values()) + sum(responses) - len(rows)
    shared = Layout(True, computed, computed, len(rows) * max(prompts))
    return min(plain, shared, key=lambda way: way.cost)


def cut(rows: Sequence[Row], budget: int, *, share: bool) -> list[list[int]]:
    """Places in `rows`, cut into micro-batches that cost `budget` at most.

    A single row over the budget stands alone.
    """
    if share:
        return split_by_prompt(rows, budget)
    return split_by_tokens([row.prompt_length + row.response_length for row in rows], budget)


def split_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of `lengths`, longest first, cut so that rows x longest row <= budget.

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


def split_by_prompt(rows: Sequence[Row], budget: int) -> list[list[int]]:
    """Places in `rows`, those of one prompt side by side, longest responses first.

    A prompt's rows are cut only where they are over the budget by themselves.
    """

    def fits(part: list[int]) -> bool:
        return layout([rows[i] for i in part], share=True).cost <= budget

    groups: dict[bytes, list[int]] = {}
    for index in sorted(range(len(rows)), key=lambda i: -rows[i].response_length):
        groups.setdefault(rows[index].prompt, []).append(index)
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
