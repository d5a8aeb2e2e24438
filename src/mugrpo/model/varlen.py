"""Attention over packed sequences of different lengths, by a kernel that needs no mask.

Suffixes: Z sequences, M packed queries, K packed keys, Q query heads, D head dimension.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.model.rows import sent

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
    def of(
        cls,
        keys: NDArray[np.int64],
        queries_Z: NDArray[np.int64],
        keys_Z: NDArray[np.int64],
        device: torch.device,
    ) -> Sequences:
        """Return the sequences with these numbers of queries and keys, [Z] each, for `device`."""

        def starts(lengths_Z: NDArray[np.int64]) -> torch.Tensor:
            return sent(np.append(0, lengths_Z.cumsum()).astype(np.int32), device)

        longest = int(queries_Z.max()), int(keys_Z.max())
        return cls(sent(keys, device), starts(queries_Z), starts(keys_Z), *longest)

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
    if "enable_gqa" in inspect.signature(varlen_attn).parameters:
        return cast(Kernel, varlen_attn)

    def grouping(*rows: Any, enable_gqa: bool, **how: Any) -> torch.Tensor:
        """Call the kernel of torch 2.11, which groups heads without being told to."""
        return cast(torch.Tensor, varlen_attn(*rows, **how))

    return grouping
