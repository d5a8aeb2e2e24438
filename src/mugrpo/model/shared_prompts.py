"""The hidden states that tell response tokens: a row at a time, or each prompt computed once.

Suffixes: B responses, U distinct prompts, L prompt and response tokens (right-padded), P prompt
tokens (right-padded), T response tokens, S response tokens but the last, K prompt and response
tokens that a response looks at (P + S), N response tokens of all responses laid end to end, M
tokens that go through the model, laid end to end, H hidden size, Q query heads, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from mugrpo.model.attention import attending, refuse_unknown

_PACKED = "mugrpo_packed"  # the name under which models find `packed_attention`


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

    Prompts and responses are laid end to end, without padding; only attention takes them apart. A
    response's last token tells nothing and is not computed.
    """
    assert prompts_B.shape == prompt_lengths_B.shape
    packing = Packing.of(ids_BL, prompt_lengths_B, mask_BT, prompts_B)
    with attending(model.config, _PACKED):
        hidden_MH = model.base_model(
            input_ids=packing.ids[None],
            position_ids=packing.positions[None],
            use_cache=False,
            packing=packing,
        ).last_hidden_state[0]
    rows_B = torch.arange(len(prompts_B), device=ids_BL.device)
    last_B1 = packing.prompt[prompts_B, prompt_lengths_B[rows_B] - 1][:, None]
    before_BT = torch.cat([last_B1, packing.response], 1)  # the token before each response token
    hidden_NH: torch.Tensor = hidden_MH.index_select(0, before_BT[mask_BT])
    return hidden_NH


@dataclass(frozen=True)
class Packing:
    """Tokens laid end to end, prompts first, and where attention finds them again."""

    ids: torch.Tensor  # [M]
    positions: torch.Tensor  # [M]
    prompt: torch.Tensor  # [U, P], where in M a prompt's tokens are, 0 in padding
    response: torch.Tensor  # [B, S], where in M a response's tokens are, 0 in padding
    looked: torch.Tensor  # [B, K], where in M is what a response looks at
    back: torch.Tensor  # [M], where a token is among [U, P] and [B, S], both flattened
    visible: torch.Tensor  # [B, S, K] bool
    distance: torch.Tensor  # [B, S, K] positions between a token and what it looks at
    masks: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)  # by window

    @classmethod
    def of(
        cls,
        ids_BL: torch.Tensor,
        prompt_lengths_B: torch.Tensor,
        mask_BT: torch.Tensor,
        prompts_B: torch.Tensor,
    ) -> Packing:
        """Of rows as `shared_hidden` takes them."""
        device = ids_BL.device
        rows_B = torch.arange(len(prompts_B), device=device)
        rows_U = rows_B.new_zeros(int(prompts_B.max()) + 1).scatter(0, prompts_B, rows_B)
        lengths_U = prompt_lengths_B[rows_U]
        places_P = torch.arange(int(lengths_U.max()), device=device)
        steps_S = torch.arange(mask_BT.shape[1] - 1, device=device)
        real_UP = places_P < lengths_U[:, None]
        real_BS = mask_BT[:, 1:]
        places_BS = (prompt_lengths_B[:, None] + steps_S).clamp(max=ids_BL.shape[1] - 1)
        prompts = int(real_UP.sum())
        prompt_UP = (real_UP.flatten().cumsum(0) - 1).view(real_UP.shape).where(real_UP, 0)
        response_BS = (real_BS.flatten().cumsum(0) - 1 + prompts).view(real_BS.shape)
        response_BS = response_BS.where(real_BS, 0)
        causal_SS = steps_S <= steps_S[:, None]
        return cls(
            ids=torch.cat(
                [ids_BL[rows_U, : len(places_P)][real_UP], ids_BL.gather(1, places_BS)[real_BS]]
            ),
            positions=torch.cat([places_P.expand(real_UP.shape)[real_UP], places_BS[real_BS]]),
            prompt=prompt_UP,
            response=response_BS,
            looked=torch.cat([prompt_UP[prompts_B], response_BS], 1),
            back=torch.cat([real_UP.flatten(), real_BS.flatten()]).nonzero()[:, 0],
            visible=torch.cat(
                [
                    real_UP[prompts_B][:, None].expand(-1, len(steps_S), -1),
                    causal_SS.expand(len(rows_B), -1, -1),
                ],
                2,
            ),
            distance=torch.cat(
                [
                    (prompt_lengths_B[:, None] + steps_S)[:, :, None] - places_P,
                    (steps_S[:, None] - steps_S).expand(len(rows_B), -1, -1),
                ],
                2,
            ),
        )

    def seen(self, window: int | None) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Masks of prompts (None: causal) and of responses, for layers that see `window` tokens."""
        if window is None:
            return None, self.visible[:, None]
        if window not in self.masks:
            places_P = torch.arange(self.prompt.shape[1], device=self.prompt.device)
            distance_PP = places_P[:, None] - places_P
            near_PP = (distance_PP >= 0) & (distance_PP < window)
            near_BSK = self.visible & (self.distance < window)
            self.masks[window] = near_PP, near_BSK[:, None]
        return self.masks[window]


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packing: Packing,
    scaling: float | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of tokens laid end to end, as Hugging Face models call it; [1, M, Q, D].

    `query`, `key` and `value` are [1, heads, M, D]. Raises ValueError where the model asks for what
    is not known here.
    """
    refuse_unknown(more)
    query_MQD, key_MQD, value_MQD = (one[0].transpose(0, 1) for one in (query, key, value))
    grouped = query.shape[1] != key.shape[1]  # heads that share keys and values
    of_prompts, of_responses = packing.seen(sliding_window)

    def taken(of_tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """[M, heads, D] -> [rows, heads, columns, D]"""
        chosen = of_tokens.index_select(0, places.flatten())
        heads, size = chosen.shape[1:]
        return chosen.view(*places.shape, heads, size).transpose(1, 2)

    def attended(
        queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Flattened [rows, columns], by [Q, D]."""
        made = F.scaled_dot_product_attention(
            taken(query_MQD, queries),
            taken(key_MQD, keys),
            taken(value_MQD, keys),
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=grouped,
        )
        flat: torch.Tensor = made.transpose(1, 2).flatten(0, 1)
        return flat

    parts = [attended(packing.prompt, packing.prompt, of_prompts)]
    if packing.response.numel():
        parts.append(attended(packing.response, packing.looked, of_responses))
    return torch.cat(parts).index_select(0, packing.back)[None], None


AttentionInterface.register(_PACKED, packed_attention)


def can_share_prompts(model: Any) -> bool:
    """Whether `shared_hidden` gives what `plain_hidden` gives: tried on tiny rows, in fp32.

    Not so for models that mix tokens by other means than attention, or ask for more of it. Rotary
    embeddings that depend on the sequence's length would differ only past a length that is not
    tried; gradient checkpointing would compute again with the model's own attention.
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
