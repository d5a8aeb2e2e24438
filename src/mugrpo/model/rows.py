"""Rows of a prompt and a response: places of tokens, and the hidden states that predict them.

Suffixes: B responses, L prompt and response tokens (right-padded), T chosen tokens of a response,
N packed chosen tokens, H hidden size.
"""

from typing import Any

import torch


def body_of(model: Any) -> Any:
    """Return the part of a causal language model that computes hidden states, without the head."""
    base = model.base_model  # Llama4 gives its language model another name than it says
    return getattr(model, "model", model) if base is model else base


def response_places(
    ids_BL: torch.Tensor,
    prompt_lengths_B: torch.Tensor,
    mask_BT: torch.Tensor,
    steps_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the indices of chosen response tokens in the flattened `ids_BL`, [N].

    `mask_BT` is true for each chosen token, and `steps_BT` its index in the response. By default,
    the indices are 0, 1, 2, ...
    """
    rows_B1 = torch.arange(len(ids_BL), device=ids_BL.device)[:, None] * ids_BL.shape[1]
    if steps_BT is None:
        steps_BT = torch.arange(mask_BT.shape[1], device=ids_BL.device)
    return (rows_B1 + prompt_lengths_B[:, None] + steps_BT)[mask_BT]


def response_lengths(mask_BT: torch.Tensor, steps_BT: torch.Tensor | None) -> torch.Tensor:
    """Return the tokens of each response up to its last chosen one, [B]. See `response_places`."""
    if steps_BT is None:
        return mask_BT.sum(-1)
    return (steps_BT + 1).masked_fill(~mask_BT, 0).amax(-1)


def plain_hidden(
    model: Any,
    ids_BL: torch.Tensor,
    prompt_lengths_B: torch.Tensor,
    mask_BT: torch.Tensor,
    steps_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the hidden state before each chosen response token, [N, H]. See `response_places`.

    `ids_BL` is padded on the right. A causal model never attends to later tokens, so no attention
    mask is needed and the fast kernels stay usable.
    """
    hidden_BLH = body_of(model)(input_ids=ids_BL, use_cache=False).last_hidden_state
    places_N = response_places(ids_BL, prompt_lengths_B, mask_BT, steps_BT)
    hidden_NH: torch.Tensor = hidden_BLH.flatten(0, 1).index_select(0, places_N - 1)
    return hidden_NH
