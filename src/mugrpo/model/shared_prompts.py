"""The hidden states that predict response tokens, with each prompt computed once.

Suffixes: B responses, U distinct prompts, L prompt and response tokens (right-padded), P prompt
tokens (right-padded), T response tokens, R response tokens up to the last one that is needed, S
response tokens but the last, K prompt and response tokens that a response attends to (P + S), N
packed response tokens, M packed tokens of the forward pass, H hidden size, Q query heads, D head
dimension.
"""

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from mugrpo.model.attention import attending, refuse_unknown
from mugrpo.model.rows import body_of, response_lengths
from mugrpo.model.varlen import Kernel, Sequences

PACKED = "mugrpo_packed"  # the name that registers `packed_attention` with transformers

# Devices on which only torch's plain kernel, which stores all scores, takes masks and query heads
# that share keys and values. A copy of these for each query head takes less.
_UNGROUPED = ("cuda",)


def shared_hidden(
    model: Any,
    ids_BL: torch.Tensor,
    prompt_lengths_B: torch.Tensor,
    mask_BT: torch.Tensor,
    prompts_B: torch.Tensor,
    steps_BT: torch.Tensor | None = None,
    kernel: Kernel | None = None,
) -> torch.Tensor:
    """Return what `plain_hidden` returns, but compute each prompt only once.

    `prompts_B` is the number of each row's prompt. Prompts and responses are packed without
    padding; only attention separates them, by masks or by a `kernel` that needs none. Nothing is
    predicted from the last chosen token of a response and those after it, so they are not computed.
    """
    assert prompts_B.shape == prompt_lengths_B.shape
    real_BR = mask_BT
    if steps_BT is not None:
        lengths_B1 = response_lengths(mask_BT, steps_BT)[:, None]
        real_BR = torch.arange(int(lengths_B1.max()), device=ids_BL.device) < lengths_B1
    packing = Packing(ids_BL, prompt_lengths_B, real_BR, prompts_B, kernel)
    with attending(model.config, PACKED):
        hidden_MH = body_of(model)(
            input_ids=packing.ids[None],
            position_ids=packing.positions[None],
            use_cache=False,
            packing=packing,
        ).last_hidden_state[0]
    last_B1 = packing.prompt[prompts_B, prompt_lengths_B - 1][:, None]
    before_BT = torch.cat([last_B1, packing.response], 1)  # the token before each response token
    if steps_BT is not None:
        before_BT = before_BT.gather(1, steps_BT)
    hidden_NH: torch.Tensor = hidden_MH.index_select(0, before_BT[mask_BT])
    return hidden_NH


class Packing:
    """Packed tokens, prompts first, and the indices by which attention separates them.

    Not a dataclass: of those among a block's arguments, FSDP makes new ones when it casts to bf16,
    and each block would compute what is cached here again, with several waits for the GPU.
    """

    def __init__(
        self,
        ids_BL: torch.Tensor,
        prompt_lengths_B: torch.Tensor,
        mask_BT: torch.Tensor,
        prompts_B: torch.Tensor,
        kernel: Kernel | None = None,
    ) -> None:
        """Pack rows, given as in `shared_hidden`. `mask_BT` is true for all response tokens."""
        device = ids_BL.device
        rows_B = torch.arange(len(prompts_B), device=device)
        rows_U = rows_B.new_zeros(int(prompts_B.max()) + 1).scatter(0, prompts_B, rows_B)
        lengths_U = prompt_lengths_B[rows_U]
        places_P = torch.arange(int(lengths_U.max()), device=device)
        steps_S = torch.arange(mask_BT.shape[1] - 1, device=device)
        real_UP = places_P < lengths_U[:, None]
        real_BS = mask_BT[:, 1:]
        places_BS = (prompt_lengths_B[:, None] + steps_S).clamp(max=ids_BL.shape[1] - 1)
        prompt_UP = (real_UP.flatten().cumsum(0) - 1).view(real_UP.shape).where(real_UP, 0)
        response_BS = (real_BS.flatten().cumsum(0) - 1 + real_UP.sum()).view(real_BS.shape)
        self.ids = torch.cat(  # [M]
            [ids_BL[rows_U, : len(places_P)][real_UP], ids_BL.gather(1, places_BS)[real_BS]]
        )
        self.positions = torch.cat(  # [M]
            [places_P.expand(real_UP.shape)[real_UP], places_BS[real_BS]]
        )
        self.prompt = prompt_UP  # [U, P], indices in M of a prompt's tokens, 0 in padding
        self.response = response_BS.where(real_BS, 0)  # [B, S], the same of a response's
        self.real_prompt = real_UP  # [U, P] bool, false in padding
        self.real_response = real_BS  # [B, S] bool, false in padding
        self.prompts = prompts_B  # [B], each response's prompt
        self.kernel = kernel  # that attends without masks
        self.masks: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by window

    @cached_property
    def context(self) -> torch.Tensor:
        """Return the indices in M of the tokens that a response attends to, [B, K]."""
        return torch.cat([self.prompt[self.prompts], self.response], 1)

    @cached_property
    def back(self) -> torch.Tensor:
        """Return a token's index in [U, P] and [B, S], flattened and concatenated, [M]."""
        real = torch.cat([self.real_prompt.flatten(), self.real_response.flatten()])
        return real.nonzero()[:, 0]

    @cached_property
    def sequences(self) -> Sequences:
        """Return the prompts, then the responses; a response attends to its prompt, too."""
        prompt_Z, response_Z = self.real_prompt.sum(1), self.real_response.sum(1)
        some = response_Z > 0  # a response of one token has none to compute
        real_BK = torch.cat([self.real_prompt[self.prompts], self.real_response], 1)[some]
        return Sequences.of(
            torch.cat([self.prompt[self.real_prompt], self.context[some][real_BK]]),
            torch.cat([prompt_Z, response_Z[some]]),
            torch.cat([prompt_Z, real_BK.sum(1)]),
        )

    @cached_property
    def visible(self) -> torch.Tensor:
        """Return whether a response's token sees one of its context: [B, S, K], no window."""
        steps_S = torch.arange(self.response.shape[1], device=self.response.device)
        shape = (len(self.prompts), len(steps_S), -1)
        prompt_BSP = self.real_prompt[self.prompts][:, None].expand(shape)
        return torch.cat([prompt_BSP, (steps_S <= steps_S[:, None]).expand(shape)], 2)

    @cached_property
    def distance(self) -> torch.Tensor:
        """Return the positions between a response's token and one of its context, [B, S, K]."""
        steps_S = torch.arange(self.response.shape[1], device=self.response.device)
        places_P = torch.arange(self.prompt.shape[1], device=self.prompt.device)
        lengths_B = self.real_prompt.sum(1)[self.prompts]
        prompt_BSP = (lengths_B[:, None] + steps_S)[:, :, None] - places_P
        own_BSS = (steps_S[:, None] - steps_S).expand(len(self.prompts), -1, -1)
        return torch.cat([prompt_BSP, own_BSS], 2)

    def attention_masks(self, window: int | None) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return masks of prompts and of responses for layers that attend to `window` tokens.

        If `window` is None, they attend to all tokens. A mask of None means plain causal attention.
        """
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
    **extras: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention output for packed tokens. Hugging Face models call this.

    `query`, `key` and `value` are [1, heads, M, D]; the output is [1, M, Q, D]. Raises ValueError
    if the model requires a kind of attention that is not supported.
    """
    refuse_unknown(extras)
    if packing.kernel is not None:
        rows = (packing.kernel, query, key, value)
        return packing.sequences.attend(*rows, scaling=scaling, window=sliding_window), None
    # On a CPU, the backward pass of attention in bf16 takes five times as long as in fp32.
    dtype = torch.float32 if query.device.type == "cpu" else query.dtype
    query_MQD, key_MQD, value_MQD = (
        tensor[0].transpose(0, 1).to(dtype) for tensor in (query, key, value)
    )
    grouped = query.shape[1] != key.shape[1]  # several query heads share keys and values
    prompt_mask, response_mask = packing.attention_masks(sliding_window)

    def attended(
        queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the output for `queries`, [rows x columns, Q, D]."""
        chosen_keys, chosen_values = (_gathered(states, keys) for states in (key_MQD, value_MQD))
        if copied := grouped and mask is not None and query.device.type in _UNGROUPED:
            each = query.shape[1] // key.shape[1]
            chosen_keys, chosen_values = (
                states.repeat_interleave(each, 1) for states in (chosen_keys, chosen_values)
            )
        output = F.scaled_dot_product_attention(
            _gathered(query_MQD, queries),
            chosen_keys,
            chosen_values,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=grouped and not copied,
        )
        flat: torch.Tensor = output.transpose(1, 2).flatten(0, 1)
        return flat

    parts = [attended(packing.prompt, packing.prompt, prompt_mask)]
    if packing.response.numel():
        parts.append(attended(packing.response, packing.context, response_mask))
    return torch.cat(parts).index_select(0, packing.back)[None].to(query.dtype), None


AttentionInterface.register(PACKED, packed_attention)


def _gathered(states_MHD: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return the states at `indices` [rows, columns], [rows, H, columns, D]."""
    chosen = states_MHD.index_select(0, indices.flatten())
    return chosen.view(*indices.shape, *chosen.shape[1:]).transpose(1, 2)
