"""Responses become padded micro-batches of bounded size. B responses, L tokens, T response tokens.

On a CPU length-sorted padding beats packing: a packed mask is dense there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mugrpo.records import Rollout


@dataclass(frozen=True)
class MicroBatch:
    """Responses that go through the model together."""

    rows: list[int]  # places of the responses in the update
    ids: torch.Tensor  # [B, L] int64, prompt and response, right-padded
    prompt_lengths: torch.Tensor  # [B] int64
    mask: torch.Tensor  # [B, T] bool, true on response tokens
    behavior_logprobs: torch.Tensor  # [B, T] float32
    advantages: torch.Tensor  # [B] float32


def split_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of `lengths`, longest first, cut so that rows x longest row <= budget.

    A single row over the budget stands alone. Equal lengths keep their order.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    parts: list[list[int]] = []
    for index in order:
        if parts and (len(parts[-1]) + 1) * lengths[parts[-1][0]] <= budget:
            parts[-1].append(index)
        else:
            parts.append([index])
    return parts


def collate(
    rollouts: Sequence[Rollout],
    advantages: torch.Tensor,
    rows: list[int],
    *,
    pad_id: int,
    device: torch.device,
) -> MicroBatch:
    """The micro-batch of `rollouts[row]` for each of `rows`; `advantages` [all responses]."""
    chosen = [rollouts[row] for row in rows]
    prompts = np.array([len(r.prompt_ids) for r in chosen])
    responses = np.array([len(r.response_ids) for r in chosen])
    ids_BL = np.full((len(rows), (prompts + responses).max()), pad_id, np.int64)
    logprobs_BT = np.zeros((len(rows), responses.max()), np.float32)
    for b, r in enumerate(chosen):
        ids_BL[b, : prompts[b]] = r.prompt_ids
        ids_BL[b, prompts[b] : prompts[b] + responses[b]] = r.response_ids
        logprobs_BT[b, : responses[b]] = r.behavior_logprobs
    return MicroBatch(
        rows=rows,
        ids=torch.from_numpy(ids_BL).to(device),
        prompt_lengths=torch.from_numpy(prompts).to(device),
        mask=torch.from_numpy(np.arange(responses.max()) < responses[:, None]).to(device),
        behavior_logprobs=torch.from_numpy(logprobs_BT).to(device),
        advantages=advantages[rows].to(device, torch.float32),
    )
