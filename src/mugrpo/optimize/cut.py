"""Cut an update's responses into micro-batches, by the tokens that go through the model.

A micro-batch is computed in the cheaper of two ways: each response after its own copy of the
prompt, padded; or each distinct prompt once, and the responses to it packed after it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
