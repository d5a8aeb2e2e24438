"""Collate responses into micro-batches. B responses, L tokens, T sampled tokens of a response.

A micro-batch holds padded rows; its layout says how the model computes them (see `cut`). What the
model is called with is on the host (see `rows`), what the loss needs is on the policy's device. The
model computes all tokens of a response, those of an environment too. What the loss sees, [B, T], is
only the tokens that the policy sampled, next to each other. So "the token before" or "the mean over
tokens" means the same with turns and without.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.disk.records import Rollout
from mugrpo.model.rows import response_lengths, sent
from mugrpo.optimize.cut import Layout, layout, prompt_key
from mugrpo.optimize.experience import Responses


@dataclass(frozen=True)
class MicroBatch:
    """Responses that go through the model together."""

    places: list[int]  # the responses' places in the update
    layout: Layout  # how the model computes them
    # On the host
    ids: NDArray[np.int64]  # [B, L], prompt and response, right-padded
    prompt_lengths: NDArray[np.int64]  # [B]
    chosen: NDArray[np.bool_]  # [B, T], the same as the mask
    prompts: NDArray[np.int64] | None  # [B], each response's prompt number; None if not shared
    # [B, T], the index in its response of each sampled token; None if these are 0, 1, 2, ...
    steps: NDArray[np.int64] | None
    # On the policy's device
    mask: torch.Tensor  # [B, T] bool, false in padding
    behavior_logprobs: torch.Tensor  # [B, T] float32
    advantages: torch.Tensor  # [B] float32
    varied: torch.Tensor  # [B] bool, true if the group's rewards are not all equal
    stored: dict[str, torch.Tensor]  # name -> [B, T] float32, logprobs stored beside the rollouts


def collate(
    responses: Responses, places: list[int], *, pad_id: int, device: torch.device, share: bool
) -> MicroBatch:
    """Return the micro-batch of the responses at `places`.

    With `share`, responses to the same prompt share it if that is cheaper.
    """
    chosen = [responses.rollouts[place] for place in places]
    prompts = np.array([len(r.prompt_ids) for r in chosen])
    lengths = np.array([len(r.response_ids) for r in chosen])
    sampled = np.array([r.sampled_tokens for r in chosen])
    ids_BL = np.full((len(places), (prompts + lengths).max()), pad_id, np.int64)
    for b, r in enumerate(chosen):
        ids_BL[b, : prompts[b]] = r.prompt_ids
        ids_BL[b, prompts[b] : prompts[b] + lengths[b]] = r.response_ids
    stored = {
        name: [values[p][r.sampled] for p, r in zip(places, chosen, strict=True)]
        for name, values in responses.stored.items()
    }
    chosen_layout = layout(chosen, share=share)
    numbers = {prompt: u for u, prompt in enumerate(dict.fromkeys(map(prompt_key, chosen)))}
    prompts_B = np.array([numbers[prompt_key(r)] for r in chosen])
    mask_BT = np.arange(sampled.max()) < sampled[:, None]
    behavior = [r.behavior_logprobs[r.sampled] for r in chosen]
    return MicroBatch(
        places=places,
        layout=chosen_layout,
        ids=ids_BL,
        prompt_lengths=prompts,
        chosen=mask_BT,
        prompts=prompts_B if chosen_layout.shared else None,
        steps=_steps(chosen),
        mask=sent(mask_BT, device),
        behavior_logprobs=sent(_padded(behavior), device),
        advantages=sent(responses.advantages[places].float(), device),
        varied=sent(responses.varied[places], device),
        stored={name: sent(_padded(values), device) for name, values in stored.items()},
    )


def cost(batches: Sequence[MicroBatch]) -> dict[str, Any]:
    """Return the cost of an update as metrics.

    `computed_tokens` is the number of tokens that went through the model, without padding.
    `padding_share` is the share of padding in everything that went through the model.
    `shared_prompt_share` is the share of tokens that sharing prompts saved.
    """
    computed = sum(batch.layout.computed for batch in batches)
    padded = sum(batch.layout.padded for batch in batches)
    alone = sum(
        int((batch.prompt_lengths + response_lengths(batch.chosen, batch.steps)).sum())
        for batch in batches
    )
    return {
        "computed_tokens": computed,
        "padding_share": 1 - computed / padded if padded else 0.0,
        "shared_prompt_share": 1 - computed / alone if alone else 0.0,
    }


def _steps(rollouts: Sequence[Rollout]) -> NDArray[np.int64] | None:
    if all(rollout.loss_mask is None for rollout in rollouts):
        return None
    return _padded([np.arange(len(r.response_ids))[r.sampled] for r in rollouts])


def _padded(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    padded = np.zeros((len(rows), max(map(len, rows))), rows[0].dtype)
    for b, values in enumerate(rows):
        padded[b, : len(values)] = values
    return padded
