"""The work of passes over groups of responses, which benchmarks/README.md explains.

`pairs` is the number of (query, key) pairs that attention must look at. Causal attention over a
sequence of L tokens needs L (L + 1) / 2 of them, while dense kernels compute L x L. `positions` is
the number of tokens that need logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mugrpo.extensions.lab.plan.counts import Shape


@dataclass(frozen=True)
class Group:
    """The lengths of a prompt and of its responses in tokens."""

    prompt: int
    responses: Sequence[int]

    @property
    def useful(self) -> int:
        """Return the number of response tokens."""
        return sum(self.responses)


@dataclass(frozen=True)
class Work:
    """The work of a forward pass over groups."""

    tokens: int
    pairs: int
    positions: int


def forward_flop(shape: Shape, work: Work) -> float:
    """Return the operations of a forward pass; a backward pass has twice as many."""
    flop = 2.0 * shape.linear_parameters * work.tokens
    return flop + shape.attention_flop(work.pairs) + shape.logits_flop(work.positions)


def causal(length: int) -> int:
    """Return the (query, key) pairs of a sequence of `length` tokens."""
    return length * (length + 1) // 2


def passed(groups: Sequence[Group], *, shared: bool) -> Work:
    """Return the least work that gives the logprob of every response token.

    A response's last token is predicted but not fed. With `shared`, a group's prompt and the logits
    after it, which predict all first tokens, are computed once.
    """
    tokens = pairs = positions = 0
    for group in groups:
        fed = [length - 1 for length in group.responses]
        prompts = 1 if shared else len(fed)
        tokens += group.prompt * prompts + sum(fed)
        pairs += causal(group.prompt) * prompts
        pairs += sum(length * group.prompt + causal(length) for length in fed)
        positions += prompts + sum(fed)
    return Work(tokens, pairs, positions)


def prefill(groups: Sequence[Group], *, shared: bool) -> Work:
    """Return the work of prefill, which needs logits only after the prompt."""
    prompts = [g.prompt for g in groups for _ in range(1 if shared else len(g.responses))]
    return Work(sum(prompts), sum(map(causal, prompts)), len(prompts))


def decoded(groups: Sequence[Group]) -> Work:
    """Return the work of all decode steps, which feed every response token except the last."""
    fed = [(group.prompt, length - 1) for group in groups for length in group.responses]
    tokens = sum(length for _, length in fed)
    return Work(tokens, sum(length * p + causal(length) for p, length in fed), tokens)
