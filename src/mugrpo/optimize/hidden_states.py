"""The hidden states that tell response tokens: a row at a time, or each prompt computed once.

Suffixes: B responses, U distinct prompts, L prompt and response tokens (right-padded), P prompt
tokens (left-padded), T response tokens, S response tokens but the last, N response tokens of all
responses laid end to end, H hidden size.
"""

from __future__ import annotations

from typing import Any

import torch


def response_places(
    ids_BL: torch.Tensor, prompt_lengths_B: torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    """Where the response tokens are in the flattened `ids_BL`, [N]."""
    rows_B1 = torch.arange(len(ids_BL), device=ids_BL.device)[:, None] * ids_BL.shape[1]
    steps_T = torch.arange(mask_BT.shape[1], device=ids_BL.device)
    return (rows_B1 + prompt_lengths_B[:, None] + steps_T)[mask_BT]


def plain_hidden(
    model: Any, ids_BL: torch.Tensor, prompt_lengths_B: torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    """The hidden state before each response token, [N, H].

    `ids_BL` is padded on the right: a causal model never looks at what follows, so no attention
    mask is needed and the fast kernels stay usable.
    """
    hidden_BLH = model.base_model(input_ids=ids_BL, use_cache=False).last_hidden_state
    places_N = response_places(ids_BL, prompt_lengths_B, mask_BT)
    hidden_NH: torch.Tensor = hidden_BLH.flatten(0, 1).index_select(0, places_N - 1)
    return hidden_NH


def shared_hidden(
    model: Any,
    ids_BL: torch.Tensor,
    prompt_lengths_B: torch.Tensor,
    mask_BT: torch.Tensor,
    prompts_B: torch.Tensor,
) -> torch.Tensor:
    """What `plain_hidden` returns, each of the prompts that `prompts_B` numbers computed once.

    The prompts fill a cache of keys and values, and each response goes on from a copy of its
    prompt's, through which its gradient flows back. A response's last token tells nothing and is
    not computed. Prompts are padded on the left, as in generation: then a distance in columns is
    one in positions, and the masks that a model makes for itself hold, of whatever window.
    """
    assert prompts_B.shape == prompt_lengths_B.shape
    rows_B = torch.arange(len(prompts_B), device=ids_BL.device)
    rows_U = rows_B.new_zeros(int(prompts_B.max()) + 1).scatter(0, prompts_B, rows_B)
    lengths_U1 = prompt_lengths_B[rows_U, None]
    longest = int(lengths_U1.max())
    places_UP = torch.arange(longest, device=ids_BL.device) - (longest - lengths_U1)
    real_UP = (places_UP >= 0).long()
    padded = not bool(real_UP.all())  # otherwise no mask: the fast kernels stay usable
    places_UP = places_UP.clamp(min=0)
    prompts = model.base_model(
        input_ids=ids_BL[rows_U].gather(1, places_UP),
        attention_mask=real_UP if padded else None,
        position_ids=places_UP,
        use_cache=True,
    )
    hidden_BTH = prompts.last_hidden_state[:, -1:].index_select(0, prompts_B)
    if mask_BT.shape[1] > 1:
        steps_S = torch.arange(mask_BT.shape[1] - 1, device=ids_BL.device)
        places_BS = (prompt_lengths_B[:, None] + steps_S).clamp(max=ids_BL.shape[1] - 1)
        real = torch.cat([real_UP[prompts_B], torch.ones_like(places_BS)], 1)
        cache = prompts.past_key_values
        cache.reorder_cache(prompts_B)
        responses = model.base_model(
            input_ids=ids_BL.gather(1, places_BS),
            attention_mask=real if padded else None,
            position_ids=places_BS,
            past_key_values=cache,
            use_cache=True,
        )
        hidden_BTH = torch.cat([hidden_BTH, responses.last_hidden_state], 1)
    hidden_NH: torch.Tensor = hidden_BTH[mask_BT]
    return hidden_NH


def can_share_prompts(model: Any) -> bool:
    """Whether `shared_hidden` gives what `plain_hidden` gives: tried on tiny rows, in fp32.

    Not so for models that keep no cache of keys and values, or one without gradients. Rotary
    embeddings that depend on the sequence's length would differ only past a length that is not
    tried; under gradient checkpointing a model keeps no cache.
    """
    rope = str(getattr(model.config, "rope_parameters", None))
    checkpointing = any(getattr(m, "gradient_checkpointing", False) for m in model.modules())
    if checkpointing or "dynamic" in rope or "longrope" in rope:
        return False
    device = model.device
    ids_BL = torch.arange(3 * 8, device=device).view(3, 8) % 7 + 1
    ids_BL[1, :3] = ids_BL[0, :3]  # two responses to a prompt of three tokens, one to one of five
    prompt_lengths_B = torch.tensor([3, 3, 5], device=device)
    mask_BT = torch.arange(3, device=device) < torch.tensor([[3], [1], [2]], device=device)
    case = (model, ids_BL, prompt_lengths_B, mask_BT)
    weight = next((p for p in model.parameters() if p.requires_grad), None)
    with torch.enable_grad():
        plain = _with_gradient(plain_hidden(*case), weight)
        try:
            prompts_B = torch.tensor([0, 0, 1], device=device)
            shared = _with_gradient(shared_hidden(*case, prompts_B), weight)
        except Exception:  # whatever a model of another kind has against it
            return False
    return all(
        a.shape == b.shape and bool((a - b).abs().max() <= 1e-3 * a.abs().max())
        for a, b in zip(plain, shared, strict=True)
    )


def _with_gradient(hidden_NH: torch.Tensor, weight: torch.Tensor | None) -> list[torch.Tensor]:
    """Hidden states, and the gradient of a weighted sum of them: a plain one may be constant."""
    if weight is None:
        return [hidden_NH]
    weights_NH = torch.linspace(-1, 2, hidden_NH.numel(), device=hidden_NH.device)
    total = (hidden_NH * weights_NH.view_as(hidden_NH)).sum()
    return [hidden_NH.detach(), *torch.autograd.grad(total, [weight])]
