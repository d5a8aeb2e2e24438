"""The hidden states that predict response tokens, with each prompt computed once.

Suffixes: B responses, U distinct prompts, L prompt and response tokens (right-padded), P prompt
tokens (right-padded), T response tokens, R response tokens up to the last one that is needed, S
response tokens but the last, K prompt and response tokens that a response attends to (P + S), N
packed response tokens, M packed tokens of the forward pass, H hidden size, Q query heads, D head
dimension.
"""

from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from transformers import AttentionInterface

from mugrpo.model.attention import attending, refuse_unknown
from mugrpo.model.rows import body_of, on_host, response_lengths, sent
from mugrpo.model.varlen import Kernel, Sequences

PACKED = "mugrpo_packed"  # the name that registers `packed_attention` with transformers

# Devices on which only torch's plain kernel, which stores all scores, takes masks and query heads
# that share keys and values. A copy of these for each query head takes less.
_UNGROUPED = ("cuda",)

_HOST = torch.device("cpu")


def shared_hidden(
    model: Any,
    ids_BL: ArrayLike,
    prompt_lengths_B: ArrayLike,
    mask_BT: ArrayLike,
    prompts_B: ArrayLike,
    steps_BT: ArrayLike | None = None,
    kernel: Kernel | None = None,
) -> torch.Tensor:
    """Return what `plain_hidden` returns, but compute each prompt only once.

    `prompts_B` is the number of each row's prompt. Prompts and responses are packed without
    padding; only attention separates them, by masks or by a `kernel` that needs none. Nothing is
    predicted from the last chosen token of a response and those after it, so they are not computed.
    """
    real_BR = mask_BT = on_host(mask_BT)
    if steps_BT is not None:
        lengths_B1 = response_lengths(mask_BT, steps_BT)[:, None]
        real_BR = np.arange(lengths_B1.max()) < lengths_B1
    packing = Packing(ids_BL, prompt_lengths_B, real_BR, prompts_B, kernel, model.device)
    with attending(model.config, PACKED):
        hidden_MH = body_of(model)(
            input_ids=packing.ids[None],
            position_ids=packing.positions[None],
            use_cache=False,
            packing=packing,
        ).last_hidden_state[0]
    before_BT = packing.before
    if steps_BT is not None:
        before_BT = np.take_along_axis(before_BT, on_host(steps_BT), 1)
    hidden_NH: torch.Tensor = hidden_MH.index_select(0, sent(before_BT[mask_BT], model.device))
    return hidden_NH


class Packing:
    """Packed tokens, prompts first, and the indices by which attention separates them.

    Not a dataclass: of those among a block's arguments, FSDP makes new ones when it casts to bf16,
    and each block would compute what is cached here again.
    """

    def __init__(
        self,
        ids_BL: ArrayLike,
        prompt_lengths_B: ArrayLike,
        mask_BT: ArrayLike,
        prompts_B: ArrayLike,
        kernel: Kernel | None = None,
        device: torch.device = _HOST,
    ) -> None:
        """Pack rows, given as in `shared_hidden`. `mask_BT` is true for all response tokens."""
        ids_BL, mask_BT, prompts_B = map(on_host, (ids_BL, mask_BT, prompts_B))
        lengths_B = on_host(prompt_lengths_B)
        rows_U = np.unique(prompts_B, return_index=True)[1]
        places_P = np.arange(lengths_B.max())
        real_UP = places_P < lengths_B[rows_U, None]
        real_BS = mask_BT[:, 1:]
        places_BS = (lengths_B[:, None] + np.arange(real_BS.shape[1])).clip(max=ids_BL.shape[1] - 1)
        ids_BS = np.take_along_axis(ids_BL, places_BS, 1)
        ids_M = np.append(ids_BL[rows_U, : len(places_P)][real_UP], ids_BS[real_BS])
        places_UP = np.broadcast_to(places_P, real_UP.shape)
        self.ids = sent(ids_M, device)  # [M]
        self.positions = sent(np.append(places_UP[real_UP], places_BS[real_BS]), device)  # [M]
        self.kernel = kernel  # that attends without masks
        self.masks: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by window
        # On the host: indices in M of a prompt's and a response's tokens, 0 in padding.
        numbers = np.append(real_UP, real_BS).cumsum() - 1
        self._prompt_UP = numbers[: real_UP.size].reshape(real_UP.shape) * real_UP
        self._response_BS = numbers[real_UP.size :].reshape(real_BS.shape) * real_BS
        self._real_UP, self._real_BS, self._prompts_B = real_UP, real_BS, prompts_B
        self._lengths_B, self._device = lengths_B, device

    @property
    def before(self) -> NDArray[np.int64]:
        """Return the index in M of the token before each response token, an array [B, T]."""
        last_B1 = self._prompt_UP[self._prompts_B, self._lengths_B - 1][:, None]
        return np.concatenate([last_B1, self._response_BS], 1)

    @cached_property
    def prompt(self) -> torch.Tensor:
        """Return the indices in M of a prompt's tokens, [U, P], 0 in padding."""
        return sent(self._prompt_UP, self._device)

    @cached_property
    def response(self) -> torch.Tensor:
        """Return the indices in M of a response's tokens but the last, [B, S], 0 in padding."""
        return sent(self._response_BS, self._device)

    @cached_property
    def context(self) -> torch.Tensor:
        """Return the indices in M of the tokens that a response attends to, [B, K]."""
        return sent(self._context, self._device)

    @cached_property
    def back(self) -> torch.Tensor:
        """Return a token's index in [U, P] and [B, S], flattened and concatenated, [M]."""
        return sent(np.flatnonzero(np.append(self._real_UP, self._real_BS)), self._device)

    @cached_property
    def sequences(self) -> Sequences:
        """Return the prompts, then the responses; a response attends to its prompt, too."""
        prompt_Z, response_Z = self._real_UP.sum(1), self._real_BS.sum(1)
        some = response_Z > 0  # a response of one token has none to compute
        real_BK = np.concatenate([self._real_UP[self._prompts_B], self._real_BS], 1)[some]
        return Sequences.of(
            np.append(self._prompt_UP[self._real_UP], self._context[some][real_BK]),
            np.append(prompt_Z, response_Z[some]),
            np.append(prompt_Z, real_BK.sum(1)),
            self._device,
        )

    @property
    def _context(self) -> NDArray[np.int64]:
        return np.concatenate([self._prompt_UP[self._prompts_B], self._response_BS], 1)

    @cached_property
    def visible(self) -> torch.Tensor:
        """Return whether a response's token sees one of its context: [B, S, K], no window."""
        steps_S = torch.arange(self.response.shape[1], device=self._device)
        shape = (len(self.response), len(steps_S), -1)
        prompt_BSP = sent(self._real_UP[self._prompts_B], self._device)[:, None].expand(shape)
        return torch.cat([prompt_BSP, (steps_S <= steps_S[:, None]).expand(shape)], 2)

    @cached_property
    def distance(self) -> torch.Tensor:
        """Return the positions between a response's token and one of its context, [B, S, K]."""
        steps_S = torch.arange(self.response.shape[1], device=self._device)
        places_P = torch.arange(self.prompt.shape[1], device=self._device)
        lengths_B1 = sent(self._lengths_B, self._device)[:, None]
        prompt_BSP = (lengths_B1 + steps_S)[:, :, None] - places_P
        own_BSS = (steps_S[:, None] - steps_S).expand(len(self.response), -1, -1)
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
