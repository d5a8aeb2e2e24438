"""Sampling by inverse distribution function from counter-based uniforms.

Suffixes: B responses, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray


def uniforms(seeds: Sequence[int], length: int) -> NDArray[np.float64]:
    """One uniform in [0, 1) per (seed, position), [B, T], from Philox keyed by the seed.

    A position's number depends on nothing but its seed and position.
    """
    rows = [np.random.Generator(np.random.Philox(key=seed)).random(length) for seed in seeds]
    return np.stack(rows)


def sample(logprobs_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
    """The token ids [B] at which the distribution function first exceeds each uniform.

    Computed in float64; a token of probability 0 is never returned.
    """
    cumulative_BV = logprobs_BV.double().exp().cumsum(-1)
    targets_B1 = uniforms_B[:, None] * cumulative_BV[:, -1:]
    return torch.searchsorted(cumulative_BV, targets_B1, right=True).squeeze(-1)
