"""A key-value cache for sequences that start and end at any step, and attention over it.

Decoding is bound by memory bandwidth. So each prompt is stored once for all its responses, and on a
CPU response tokens are stored in blocks, so that a step reads contiguous memory. On a GPU, a kernel
for each block would take longer than reading it (113,679 kernels a step of 28 layers after 32,000
tokens), so there all tokens are in one block, which grows.

In bf16, keys are stored less the mean of their prompt's keys. That changes no softmax. But scores
are rounded to bf16, and the keys of Qwen2.5 have so much in common that the rounding hid what tells
them apart: logprobs were 2.2 times as far from fp32 as those of a plain pass, and are 1.0 times.

Suffixes: A active slots, S slots, H key-value heads, Q query heads per key-value head, D head
dimension, U prompts, M slots of the prompt with the most slots, P positions of a prompt, N blocks
of response tokens, B positions of a block, L positions that attention reads (P + N B).
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn
from transformers import AttentionInterface

from mugrpo.model.attention import refuse_unknown

KeysValues = tuple[torch.Tensor, torch.Tensor]  # of one layer, both [H, tokens, D]
Places = NDArray[np.int64]

BLOCK = 24  # tokens of one slot in a block; if there is one, it is read in steps of so many
ATTENTION = "mugrpo_slots"  # transformers knows `attention` by this name


def cache_argument(cache: Any, model: Any) -> dict[str, Any]:
    """Return transformers' `cache` by its name in the model's forward pass.

    That is "cache" since transformers 5.24.
    """
    names = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}


@dataclass
class _Layer:
    """The cached keys and values of one layer."""

    prompts: list[torch.Tensor]  # keys, values [rows, H, positions, D], common keys [rows, H, 1, D]
    responses: list[torch.Tensor]  # keys and values, [blocks, S, H, B, D]


@dataclass(frozen=True)
class _Step:
    """Indices and masks of one decoding step; every tensor is on the model's device."""

    prompts: torch.Tensor  # [A], the prompt of each slot
    write: torch.Tensor  # [A * H], rows of the flattened blocks for the new keys and values
    members: torch.Tensor  # [U * M], the slots of each prompt, padded with slot 0
    back: torch.Tensor  # [A], the index of each slot in `members`
    sizes: tuple[int, int, int, int, int]  # U, M, P, N, and of B those that are read
    visible: torch.Tensor  # [A, L] bool
    tokens: tuple[torch.Tensor, torch.Tensor]  # of the prompt, and of the response so far; [A, 1]
    bias: dict[int | None, torch.Tensor]  # by window, [A, 1, 1, L], -inf where masked


class SlotCache:
    """Keys and values of the sequences in the slots, each of its own length.

    The slots in use are the first ones, one for each sequence. Unless it is `split` into blocks of
    equal size, there is one, and the number of a step's operations does not depend on lengths.
    """

    def __init__(self, slots: int, *, split: bool = True) -> None:
        self.slots = slots
        self.split = split
        self.layers: list[_Layer] = []
        self.prompt_S = np.zeros(slots, np.int64)  # the prompt of each slot
        self.length_U = np.zeros(0, np.int64)  # tokens of each prompt
        self.step: _Step | None = None
        # `members` and `back` of `_Step`, and M
        self._groups: tuple[torch.Tensor, torch.Tensor, int] | None = None

    def begin(self, rows: Places, prompt: list[KeysValues]) -> None:
        """Start responses to one prompt in the slots `rows`.

        `prompt` holds the prompt's keys and values in each layer.
        """
        length, row = prompt[0][0].shape[1], len(self.length_U)
        if not self.layers:
            self.layers = [self._layer(keys) for keys, _ in prompt]
        for cached, (keys, values) in zip(self.layers, prompt, strict=True):
            common = keys.mean(1, keepdim=True) * (keys.dtype != torch.float32)
            for i, new in enumerate((keys - common, values, common)):
                size = new.shape[1]
                cached.prompts[i] = _with_room(cached.prompts[i], {0: row + 1, 2: size})
                cached.prompts[i][row, :, :size] = new
        self.length_U = np.append(self.length_U, length)
        self.prompt_S[rows] = row
        self._groups = None

    def grow(self, slots: int) -> None:
        """Make room for `slots` sequences, at least as many as before."""
        added = slots - self.slots
        for layer in self.layers:
            layer.responses = [F.pad(t, (0, 0) * 3 + (0, added)) for t in layer.responses]
        self.prompt_S = np.pad(self.prompt_S, (0, added))
        self.slots = slots

    def compact(self, source: Places, target: Places, active: int, live: int) -> None:
        """Move the slots `source` to `target`, then keep only the first `active` slots.

        No remaining slot may have more than `live` response tokens. Prompts without a slot are
        dropped.
        """
        if len(target):
            self.prompt_S[target] = self.prompt_S[source]
            for layer in self.layers:
                for tensor in layer.responses:
                    used = tensor[: -(-live // tensor.shape[3]), :, :, :live]
                    used[:, target] = used[:, source]
        prompts = np.unique(self.prompt_S[:active])
        holes = np.setdiff1d(np.arange(len(prompts)), prompts)
        movers = prompts[len(prompts) - len(holes) :]
        if len(holes):
            for layer in self.layers:
                for tensor in layer.prompts:
                    tensor[holes] = tensor[movers]
            self.length_U[holes] = self.length_U[movers]
            for mover, hole in zip(movers, holes, strict=True):
                self.prompt_S[:active][self.prompt_S[:active] == mover] = hole
        self.length_U = self.length_U[: len(prompts)]
        self._groups = None

    def aim(self, response_A: Places, device: torch.device) -> torch.Tensor:
        """Prepare a step that decodes a token in each of the first A slots.

        `response_A` is the token's index in its response, from 0. Return the tokens' positions in
        their sequences, [A], also from 0.
        """
        active = len(response_A)
        read = (int(response_A.max()) // BLOCK + 1) * BLOCK
        blocks, read_B = (read // BLOCK, BLOCK) if self.split else (1, read)
        for layer in self.layers:
            layer.responses = [_with_room(t, {0: blocks, 3: read_B}) for t in layer.responses]
        heads, size = self.layers[0].responses[0].shape[2:4]
        row_A = response_A // size * self.slots + np.arange(active)
        write_AH = (row_A[:, None] * heads + np.arange(heads)) * size + response_A[:, None] % size
        members, back, most = self._groups or self._grouped(active, device)
        prompt_A = self.length_U[self.prompt_S[:active]]
        longest = int(self.length_U.max())
        prompt_A1, here_A1 = (
            torch.from_numpy(tokens_A).to(device)[:, None] for tokens_A in (prompt_A, response_A)
        )
        visible_AP = torch.arange(longest, device=device) < prompt_A1
        visible_AR = torch.arange(read, device=device) <= here_A1
        self.step = _Step(
            prompts=torch.from_numpy(self.prompt_S[:active]).to(device),
            write=torch.from_numpy(write_AH.ravel()).to(device),
            members=members,
            back=back,
            sizes=(len(self.length_U), most, longest, blocks, read_B),
            visible=torch.cat([visible_AP, visible_AR], 1),
            tokens=(prompt_A1, here_A1),
            bias={},
        )
        return (prompt_A1 + here_A1)[:, 0]

    def attend(
        self,
        layer: int,
        query_AQ1D: torch.Tensor,
        key_AHD: torch.Tensor,
        value_AHD: torch.Tensor,
        *,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        """Store the step's keys and values, and return the attention output, [A, 1, queries, D]."""
        assert self.step is not None, "call `aim` before a step"
        step, cached = self.step, self.layers[layer]
        A, H, D = key_AHD.shape
        Q = query_AQ1D.shape[1] // H
        U, M, P, N, B = step.sizes
        prompt_keys, prompt_values = (t[:U, :, :P].flatten(0, 1) for t in cached.prompts[:2])
        if prompt_keys.dtype != torch.float32:
            key_AHD = key_AHD - cached.prompts[2].index_select(0, step.prompts)[:, :, 0]
        for blocks, new in zip(cached.responses, (key_AHD, value_AHD), strict=True):
            blocks.view(-1, D).index_copy_(0, step.write, new.reshape(-1, D).to(blocks.dtype))
        keys, values = (
            [blocks[n, :A].view(A * H, B, D) for n in range(N)]
            for blocks in (t if self.split else t[..., :B, :] for t in cached.responses)
        )

        def to_prompts(of_slots: torch.Tensor) -> torch.Tensor:
            """[A, H, Q, X] -> [U H, M Q, X]"""
            chosen = of_slots.index_select(0, step.members)
            return chosen.view(U, M, H, Q, -1).transpose(1, 2).reshape(U * H, M * Q, -1)

        def to_slots(of_prompts: torch.Tensor) -> torch.Tensor:
            """[U H, M Q, X] -> [A, H, Q, X]"""
            parts = of_prompts.view(U, H, M, Q, -1).transpose(1, 2).reshape(U * M, H, Q, -1)
            return parts.index_select(0, step.back)

        query = (query_AQ1D * scale).to(keys[0].dtype).reshape(A * H, Q, D)
        scores = [to_slots(to_prompts(query.view(A, H, Q, D)) @ prompt_keys.transpose(1, 2))]
        scores += [(query @ block.transpose(1, 2)).view(A, H, Q, B) for block in keys]
        weights = torch.softmax(torch.cat(scores, -1).float().add_(self._bias(window)), -1)
        weights = weights.to(values[0].dtype)
        of_prompt, *of_blocks = weights.split([P] + [B] * N, -1)
        read = to_slots(to_prompts(of_prompt) @ prompt_values).view(A * H, Q, D)
        for weight, block in zip(of_blocks, values, strict=True):
            read = torch.baddbmm(read, weight.reshape(A * H, Q, B), block)
        return read.view(A, 1, H * Q, D).to(query_AQ1D.dtype)

    def _layer(self, keys_HPD: torch.Tensor) -> _Layer:
        """Allocate a layer with room for one prompt and one block."""
        heads, positions, size = keys_HPD.shape
        return _Layer(
            [keys_HPD.new_zeros(1, heads, n, size) for n in (positions, positions, 1)],
            [keys_HPD.new_zeros(1, self.slots, heads, BLOCK, size) for _ in range(2)],
        )

    def _bias(self, window: int | None) -> torch.Tensor:
        assert self.step is not None
        step = self.step
        if window not in step.bias:
            mask_AL = step.visible
            if window is not None:
                mask_AL = mask_AL & (self._distance(step) < window)
            bias_AL = torch.zeros(mask_AL.shape, device=mask_AL.device).masked_fill_(
                ~mask_AL, -torch.inf
            )
            step.bias[window] = bias_AL[:, None, None]
        return step.bias[window]

    def _distance(self, step: _Step) -> torch.Tensor:
        """Return the positions between the token and the one it attends to, [A, L]."""
        (prompt_A1, here_A1), (_, _, P, N, B) = step.tokens, step.sizes
        places_P, places_R = (torch.arange(n, device=here_A1.device) for n in (P, N * B))
        return torch.cat([prompt_A1 + here_A1 - places_P, here_A1 - places_R], 1)

    def _grouped(self, active: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return `members` and `back` of `_Step` and M, for the prompts of the active slots."""
        prompt_A = self.prompt_S[:active]
        order = np.argsort(prompt_A, kind="stable")
        counts_U = np.bincount(prompt_A, minlength=len(self.length_U))
        most = int(counts_U.max())
        rank_A = np.arange(active) - np.repeat(counts_U.cumsum() - counts_U, counts_U)
        back_A = np.empty(active, np.int64)
        back_A[order] = prompt_A[order] * most + rank_A
        members = np.zeros(len(self.length_U) * most, np.int64)
        members[back_A] = np.arange(active)
        self._groups = (
            torch.from_numpy(members).to(device),
            torch.from_numpy(back_A).to(device),
            most,
        )
        return self._groups


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    slots: Any,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **extras: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention output for one new token per slot. Hugging Face models call this.

    `slots` is a SlotCache or StaticSlots. `query` is [A, queries, 1, D], `key` and `value` are
    [A, H, 1, D]; the output is [A, 1, queries, D]. Raises ValueError if the model requires a kind
    of attention that is not supported.
    """
    refuse_unknown(extras)
    assert query.shape[2] == 1, "a step decodes one token per slot"
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows = (query, key[:, :, 0], value[:, :, 0])
    return slots.attend(module.layer_idx, *rows, scale=scale, window=sliding_window), None


AttentionInterface.register(ATTENTION, attention)


def _with_room(tensor: torch.Tensor, sizes: dict[int, int]) -> torch.Tensor:
    """Return `tensor` with at least these sizes by dimension.

    A dimension that is too small grows by at least half.
    """
    shape = list(tensor.shape)
    for dimension, size in sizes.items():
        if size > shape[dimension]:
            shape[dimension] = max(size, shape[dimension] * 3 // 2)
    if shape == list(tensor.shape):
        return tensor
    enlarged = tensor.new_zeros(shape)
    enlarged[tuple(slice(size) for size in tensor.shape)] = tensor
    return enlarged


# Linear layers whose weights are stored in the memory layout of the CPU's matrix kernels.
#
# A decoding step multiplies few rows, so reading and reordering the weights takes as long as the
# multiplication. oneDNN, which PyTorch includes, can multiply with weights that were reordered
# once.


class Reordered:
    """Reordered copies of the weights of a model's linear layers, if it is on a CPU.

    `rows` is the expected number of rows per call. The copies take as much memory as the weights,
    and serve until those change.
    """

    def __init__(self, model: Any, rows: int) -> None:
        self._forwards = list[tuple[nn.Linear, Any]]()
        for layer in _reorderable(model):  # without oneDNN there are none, and no such operation
            weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
            self._forwards.append((layer, partial(_linear, weight, layer.bias)))

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let the layers use the copies within the block."""
        for layer, forward in self._forwards:
            layer.forward = forward  # type: ignore[method-assign]
        try:
            yield
        finally:
            for layer, _ in self._forwards:
                del layer.forward


def _linear(weight: torch.Tensor, bias: torch.Tensor | None, input: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
    return output


def _reorderable(model: Any) -> list[nn.Linear]:
    ready = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not ready or model.device.type != "cpu":
        return []
    # Older CPUs multiply in bf16, but not in this layout.
    half = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear]
    return [layer for layer in layers if half or layer.weight.dtype != torch.bfloat16]
