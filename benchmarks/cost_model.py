"""Operations and bytes of a decoder's phases, counted: docs/cost_model.md says what and why.

A multiplication and an addition are two operations (FLOP). Bytes are of fp32 numbers that have to
cross the memory bus: weights, gradients, optimizer state, the KV cache. Norms, activations,
rotary embeddings and softmax are left out: they are below 1 % of the operations of a real model.

`pairs` is how many (query, key) pairs attention has to look at: causal attention over a sequence
of L tokens needs L (L + 1) / 2 of them, dense kernels compute L x L.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FLOAT = 4  # bytes
ADAMW_BYTES = 7 * FLOAT  # reads weight, gradient, two moments; writes weight and moments
ADAMW_FLOP = 14  # a parameter, as the update rule is written
CLIP_BYTES = 3 * FLOAT  # reads the gradient for its norm, reads and writes it to scale it


@dataclass(frozen=True)
class Linear:
    """`count` matrices that make N numbers of K: [M, K] x [K, N]."""

    name: str
    k: int
    n: int
    count: int


@dataclass(frozen=True)
class Cost:
    """Operations and bytes, added up phase by phase."""

    flop: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flop + other.flop, self.bytes + other.bytes)

    def __mul__(self, times: float) -> Cost:
        return Cost(self.flop * times, self.bytes * times)


@dataclass(frozen=True)
class Shape:
    """What of a model's config decides its cost. The feed-forward layers have three matrices."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool

    @classmethod
    def of(cls, config: Any) -> Shape:
        """From a Hugging Face config of the Llama family (Llama, Qwen2/3, Gemma, SmolLM)."""
        text = config.get_text_config()
        heads = text.num_attention_heads
        return cls(
            hidden=text.hidden_size,
            layers=text.num_hidden_layers,
            heads=heads,
            kv_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
            intermediate=text.intermediate_size,
            vocab=text.vocab_size,
            tied=bool(text.tie_word_embeddings),
        )

    @property
    def linears(self) -> list[Linear]:
        """The matrices that every token passes."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return [
            Linear("query", self.hidden, queries, self.layers),
            Linear("key_value", self.hidden, keys, 2 * self.layers),
            Linear("output", queries, self.hidden, self.layers),
            Linear("gate_up", self.hidden, self.intermediate, 2 * self.layers),
            Linear("down", self.intermediate, self.hidden, self.layers),
        ]

    @property
    def head(self) -> Linear:
        """The matrix of the logits, which only tokens pass that a log-probability is needed at."""
        return Linear("head", self.hidden, self.vocab, 1)

    @property
    def linear_parameters(self) -> int:
        return sum(linear.k * linear.n * linear.count for linear in self.linears)

    @property
    def parameters(self) -> int:
        """Without biases and norms."""
        return self.linear_parameters + self.hidden * self.vocab * (1 if self.tied else 2)

    # ---- one pass ----

    def attention_flop(self, pairs: float) -> float:
        """Scores and their weighted sum, two operations each a pair and head dimension."""
        return 4.0 * self.layers * self.heads * self.head_dim * pairs

    def logits_flop(self, positions: float) -> float:
        return 2.0 * self.hidden * self.vocab * positions

    def kv_bytes(self, keys: float) -> float:
        """Of keys and values of `keys` tokens, all layers."""
        return 2.0 * FLOAT * self.layers * self.kv_heads * self.head_dim * keys

    def forward(self, tokens: float, pairs: float, positions: float) -> Cost:
        """One forward pass, the weights read once; `positions` need logits."""
        flop = 2.0 * self.linear_parameters * tokens
        flop += self.attention_flop(pairs) + self.logits_flop(positions)
        return Cost(flop, FLOAT * (self.linear_parameters + self.hidden * self.vocab))

    def backward(self, tokens: float, pairs: float, positions: float) -> Cost:
        """Gradients by inputs and by weights: every product of the forward pass, twice.

        The weights are read once and their gradients written once.
        """
        return self.forward(tokens, pairs, positions) * 2

    def decode_step(self, slots: float, keys: float) -> Cost:
        """One token in each of `slots` sequences that hold `keys` tokens together, itself too."""
        cost = self.forward(slots, keys, slots)
        return cost + Cost(0, self.kv_bytes(keys + slots))

    def adamw(self) -> Cost:
        """Clipping the gradient's norm and one step of the optimizer."""
        return Cost(ADAMW_FLOP, ADAMW_BYTES + CLIP_BYTES) * self.parameters


def causal(length: int) -> int:
    """(query, key) pairs of a sequence of `length` tokens."""
    return length * (length + 1) // 2


@dataclass(frozen=True)
class Group:
    """The lengths, in tokens, of a prompt and of the responses to it."""

    prompt: int
    responses: Sequence[int]

    @property
    def useful(self) -> int:
        """Response tokens: what generation is for and optimization learns from."""
        return sum(self.responses)


@dataclass(frozen=True)
class Work:
    """What a forward pass over groups has to compute."""

    tokens: int
    pairs: int
    positions: int


def passed(groups: Sequence[Group], *, shared: bool) -> Work:
    """The least that gives every response token's log-probability.

    A response's last token is predicted, not fed. With `shared`, a group's prompt passes once and
    the logits behind it, from which all first tokens come, are made once.
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
    """What prefill has to compute: logits behind the prompt only."""
    prompts = [g.prompt for g in groups for _ in range(1 if shared else len(g.responses))]
    return Work(sum(prompts), sum(map(causal, prompts)), len(prompts))


def decoded(groups: Sequence[Group]) -> Work:
    """What all decode steps together have to compute: every response token but the last is fed."""
    fed = [(group.prompt, length - 1) for group in groups for length in group.responses]
    tokens = sum(length for _, length in fed)
    return Work(tokens, sum(length * p + causal(length) for p, length in fed), tokens)
