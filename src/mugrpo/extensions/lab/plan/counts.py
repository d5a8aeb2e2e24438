"""Counts of the operations and bytes of a decoder, which benchmarks/README.md explains.

A multiplication and an addition are two operations (FLOP). Norms, activations, rotary embeddings
and softmax are left out because they are below 1 % of a real model's operations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import UsageError

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

    def adapter(self, rank: int) -> int:
        """Return the parameters of a LoRA adapter: `rank` rows and columns beside each matrix."""
        return sum(rank * (k + n) * self.layers for k, n in self.matrices.values())

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


def read_shape(folder: Path) -> Shape:
    """Return the shape in a folder's config.json. Raises UsageError if it is no such shape."""
    file = folder / "config.json"
    try:
        config = dict(json.loads(file.read_bytes()))
        shape = Shape.of(config)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"{file} does not describe a model whose cost can be counted ({type(error).__name__}: "
            f"{error}); name a directory with the config.json of a Llama-like model: --form DIR"
        ) from None
    if experts := [key for key in config if "experts" in key and config[key]]:
        raise UsageError(
            f"{file} describes a mixture of experts ({experts[0]}), whose cost is not counted; "
            "plan with a dense model of as many active parameters: --form DIR"
        )
    return shape
