"""Counted operations and bytes of a decoder, which benchmarks/README.md explains.

A multiplication and an addition are two operations (FLOP). Norms, activations, rotary embeddings
and softmax are left out because they are below 1 % of a real model's operations.

`pairs` is the number of (query, key) pairs that attention must look at. Causal attention over a
sequence of L tokens needs L (L + 1) / 2 of them, while dense kernels compute L x L. `positions` is
the number of tokens that need logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FLOAT = 4  # bytes

# Per parameter, of clipping the gradient's norm and of AdamW:
STEP_BYTES = 10 * FLOAT  # clipping reads the gradient twice and scales it; AdamW moves seven
STEP_FLOP = 14  # as AdamW's rule is written


@dataclass(frozen=True)
class Shape:
    """The sizes in a model's config that determine its cost. Feed-forward has three matrices."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """Return the shape of a Llama-like Hugging Face model (Llama, Qwen2/3, Gemma, SmolLM).

        `config` is the content of its config.json. Raises KeyError if that lacks a size.
        """
        config = config.get("text_config", config)
        heads = config["num_attention_heads"]
        return cls(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=config["intermediate_size"],
            vocab=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings", False)),
        )

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return K and N of a layer's matrices [K, N], by their names in a Hugging Face model."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    @property
    def linear_parameters(self) -> int:
        """Return the parameters that every token is multiplied with: all but the head's."""
        return self.layers * sum(k * n for k, n in self.matrices.values())

    @property
    def parameters(self) -> int:
        """Return the number of parameters, without biases and norms."""
        return self.linear_parameters + self.hidden * self.vocab * (1 if self.tied else 2)

    def attention_flop(self, pairs: float) -> float:
        """Return the FLOP of scores and weighted sum for (query, key) pairs in all layers.

        Causal attention over a sequence of L tokens needs L (L + 1) / 2 pairs.
        """
        return 4.0 * self.layers * self.heads * self.head_dim * pairs

    def logits_flop(self, positions: float) -> float:
        """Return the FLOP of the logits of that many tokens."""
        return 2.0 * self.hidden * self.vocab * positions

    def kv_bytes(self, keys: float, each: int = FLOAT) -> float:
        """Return the bytes of the keys and values of `keys` tokens in all layers."""
        return 2.0 * each * self.layers * self.kv_heads * self.head_dim * keys


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
