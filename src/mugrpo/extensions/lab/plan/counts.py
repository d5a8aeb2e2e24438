"""Counts of the operations and bytes of a decoder's phases, which docs/cost_model.md explains.

A multiplication and an addition are two operations (FLOP). Bytes are those of fp32 numbers that
must cross the memory bus: weights, gradients, optimizer state and the KV cache. Norms, activations,
rotary embeddings and softmax are left out because they are below 1 % of a real model's operations.

`pairs` is the number of (query, key) pairs that attention must look at. Causal attention over a
sequence of L tokens needs L (L + 1) / 2 of them, while dense kernels compute L x L. `positions` is
the number of tokens that need logits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import UsageError

FLOAT = 4  # bytes

# Per parameter:
ADAMW_BYTES = 7 * FLOAT  # reads weight, gradient, two moments; writes weight and moments
ADAMW_FLOP = 14  # as the update rule is written
CLIP_BYTES = 3 * FLOAT  # reads the gradient for its norm, reads and writes it to scale it

_NAMES = {  # of a matrix: those that its layers have in a Hugging Face model
    "query": ("q_proj",),
    "key_value": ("k_proj", "v_proj"),
    "output": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}


@dataclass(frozen=True)
class Linear:
    """`count` matrices that map K numbers to N: [M, K] x [K, N]."""

    name: str
    k: int
    n: int
    count: int


@dataclass(frozen=True)
class Cost:
    """Operations and bytes, which can be added up over phases."""

    flop: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flop + other.flop, self.bytes + other.bytes)

    def __mul__(self, times: float) -> Cost:
        return Cost(self.flop * times, self.bytes * times)


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
    def of(cls, config: Any) -> Shape:
        """Return the shape of a Llama-like Hugging Face model (Llama, Qwen2/3, Gemma, SmolLM)."""
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

    @classmethod
    def read(cls, folder: Path) -> Shape:
        """Return the shape in a folder's config.json. Raises UsageError if it is no such shape."""
        try:
            config = dict(json.loads((folder / "config.json").read_bytes()))
            config = config.get("text_config", config)
            heads = config["num_attention_heads"]
            experts = [key for key in config if "experts" in key and config[key]]
            shape = cls(
                hidden=config["hidden_size"],
                layers=config["num_hidden_layers"],
                heads=heads,
                kv_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or config["hidden_size"] // heads,
                intermediate=config["intermediate_size"],
                vocab=config["vocab_size"],
                tied=bool(config.get("tie_word_embeddings", False)),
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UsageError(
                f"{folder / 'config.json'} does not describe a model whose cost can be counted "
                f"({type(error).__name__}: {error}); name a directory with the config.json of a "
                "Llama-like model: --form DIR"
            ) from None
        if experts:
            raise UsageError(
                f"{folder / 'config.json'} describes a mixture of experts ({experts[0]}), whose "
                "cost is not counted; plan with a dense model of as many active parameters: "
                "--form DIR"
            )
        return shape

    @property
    def linears(self) -> list[Linear]:
        """Return the matrices that every token is multiplied with."""
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
        """Return the matrix of the logits, used only for tokens that need logits."""
        return Linear("head", self.hidden, self.vocab, 1)

    @property
    def linear_parameters(self) -> int:
        return sum(linear.k * linear.n * linear.count for linear in self.linears)

    @property
    def parameters(self) -> int:
        """Return the number of parameters, without biases and norms."""
        return self.linear_parameters + self.hidden * self.vocab * (1 if self.tied else 2)

    def adapter(self, rank: int, targets: str | Sequence[str] = "all-linear") -> int:
        """Return the parameters of a LoRA adapter: `rank` rows and columns beside each matrix."""
        every, found = targets == "all-linear", 0
        for linear in self.linears:
            names = _NAMES[linear.name]
            chosen = [n for n in names if every or n.endswith(tuple(targets))]
            found += rank * (linear.k + linear.n) * linear.count * len(chosen) // len(names)
        return found

    # ---- one pass ----

    def attention_flop(self, pairs: float) -> float:
        """Return the FLOP of scores and weighted sum: two each per pair and head dimension."""
        return 4.0 * self.layers * self.heads * self.head_dim * pairs

    def logits_flop(self, positions: float) -> float:
        return 2.0 * self.hidden * self.vocab * positions

    def kv_bytes(self, keys: float, each: int = FLOAT) -> float:
        """Return the bytes of the keys and values of `keys` tokens in all layers."""
        return 2.0 * each * self.layers * self.kv_heads * self.head_dim * keys

    def forward(self, tokens: float, pairs: float, positions: float) -> Cost:
        """Return the cost of a forward pass that reads the weights once."""
        flop = 2.0 * self.linear_parameters * tokens
        flop += self.attention_flop(pairs) + self.logits_flop(positions)
        return Cost(flop, FLOAT * (self.linear_parameters + self.hidden * self.vocab))

    def backward(self, tokens: float, pairs: float, positions: float) -> Cost:
        """Return the cost of the gradients by inputs and by weights: every forward product twice.

        The weights are read once and their gradients written once.
        """
        return self.forward(tokens, pairs, positions) * 2

    def decode_step(self, slots: float, keys: float) -> Cost:
        """Return the cost of one token in each of `slots` sequences.

        Together these hold `keys` tokens, including the new ones.
        """
        cost = self.forward(slots, keys, slots)
        return cost + Cost(0, self.kv_bytes(keys + slots))

    def adamw(self, trained: int | None = None) -> Cost:
        """Return the cost of clipping the gradient norm and of one optimizer step.

        `trained` is the number of parameters that are trained, by default all.
        """
        number = self.parameters if trained is None else trained
        return Cost(ADAMW_FLOP, ADAMW_BYTES + CLIP_BYTES) * number


def causal(length: int) -> int:
    """Return the (query, key) pairs of a sequence of `length` tokens."""
    return length * (length + 1) // 2


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
