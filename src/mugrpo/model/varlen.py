"""Attention over packed sequences of different lengths, by a kernel that needs no mask.

Suffixes: Z sequences, M packed queries, K packed keys, Q query heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch

# `torch.nn.attention.varlen.varlen_attn`, or a function with its arguments and its meaning:
# (query [M, Q, D], key and value [K, heads, D], cu_seq_q and cu_seq_k [Z + 1] int32, max_q, max_k,
# *, scale, window_size, enable_gqa) -> [M, Q, D]. A sequence's last query is at its last key.
Kernel = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Sequences:
    """Which of the packed tokens attend to which: each query to its sequence's keys up to its own.

    The queries of a sequence are the last of its keys' tokens. Those of all sequences in order are
    the packed tokens. Keys may belong to several sequences.
    """

    keys: torch.Tensor  # [K], indices in M
    starts_q: torch.Tensor  # [Z + 1] int32, where each sequence's queries begin
    starts_k: torch.Tensor  # [Z + 1] int32, where each sequence's keys begin in `keys`
    longest_q: int
    longest_k: int

    @classmethod
    def of(cls, keys: torch.Tensor, queries_Z: torch.Tensor, keys_Z: torch.Tensor) -> Sequences:
        """Return the sequences with these numbers of queries and keys, [Z] each."""

        def starts(lengths_Z: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(lengths_Z.cumsum(0), (1, 0)).to(torch.int32)

        longest_q, longest_k = torch.stack([queries_Z.max(), keys_Z.max()]).tolist()
        return cls(keys, starts(queries_Z), starts(keys_Z), longest_q, longest_k)

    def attend(
        self,
        kernel: Kernel,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """Return the attention output [1, M, Q, D] for [1, heads, M, D] of packed tokens.

        With a `window`, a token attends to `window` tokens, itself included.
        """
        query_MQD, key_MQD, value_MQD = (
            states[0].transpose(0, 1) for states in (query, key, value)
        )
        output: torch.Tensor = kernel(
            query_MQD.contiguous(),
            key_MQD.index_select(0, self.keys),
            value_MQD.index_select(0, self.keys),
            self.starts_q,
            self.starts_k,
            self.longest_q,
            self.longest_k,
            scale=scaling,
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return output[None]


def varlen_kernel() -> Kernel | None:
    """Return torch's kernel, which needs CUDA and bf16 or fp16; None if this torch has none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return cast(Kernel, varlen_attn)
