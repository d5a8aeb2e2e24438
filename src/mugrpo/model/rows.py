"""Rows of a prompt and a response: places of tokens, and the hidden states that predict them.

Rows are described on the host: what a GPU computes never decides what is computed next, so nobody
waits for it. "Arrays" are numpy's here, or tensors.

Suffixes: B responses, L prompt and response tokens (right-padded), T chosen tokens of a response,
N packed chosen tokens, H hidden size.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray


def body_of(model: Any) -> Any:
    """Return the part of a causal language model that computes hidden states, without the head."""
    base = model.base_model  # Llama4 gives its language model another name than it says
    return getattr(model, "model", model) if base is model else base


def sent(values: ArrayLike, device: torch.device) -> torch.Tensor:
    """Return an array as a tensor on `device`. The host does not wait for a GPU.

    It would if memory were not pinned.
    """
    tensor = torch.as_tensor(values)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def on_host(values: ArrayLike) -> NDArray[Any]:
    """Return an array, or a tensor on any device, as numpy's: FSDP moves tensors to its GPU."""
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def response_places(
    ids_BL: ArrayLike,
    prompt_lengths_B: ArrayLike,
    mask_BT: ArrayLike,
    steps_BT: ArrayLike | None = None,
) -> NDArray[np.int64]:
    """Return the indices of chosen response tokens in the flattened array `ids_BL`, [N].

    `mask_BT` is true for each chosen token, and `steps_BT` its index in the response. By default,
    the indices are 0, 1, 2, ...
    """
    (rows, length), mask_BT = on_host(ids_BL).shape, on_host(mask_BT)
    steps_BT = np.arange(mask_BT.shape[1]) if steps_BT is None else on_host(steps_BT)
    begin_B = np.arange(rows) * length + on_host(prompt_lengths_B)
    places_N: NDArray[np.int64] = (begin_B[:, None] + steps_BT)[mask_BT]
    return places_N


def response_lengths(mask_BT: ArrayLike, steps_BT: ArrayLike | None) -> NDArray[np.int64]:
    """Return the tokens of each response up to its last chosen one, [B]. See `response_places`."""
    mask_BT = on_host(mask_BT)
    steps_BT = np.arange(mask_BT.shape[1]) if steps_BT is None else on_host(steps_BT)
    lengths_B: NDArray[np.int64] = np.where(mask_BT, steps_BT + 1, 0).max(-1)
    return lengths_B


def plain_hidden(
    model: Any,
    ids_BL: ArrayLike,
    prompt_lengths_B: ArrayLike,
    mask_BT: ArrayLike,
    steps_BT: ArrayLike | None = None,
) -> torch.Tensor:
    """Return the hidden state before each chosen response token, [N, H]. See `response_places`.

    `ids_BL` is padded on the right. A causal model never attends to later tokens, so no attention
    mask is needed and the fast kernels stay usable.
    """
    ids = sent(ids_BL, model.device)
    hidden_BLH = body_of(model)(input_ids=ids, use_cache=False).last_hidden_state
    places_N = sent(response_places(ids_BL, prompt_lengths_B, mask_BT, steps_BT) - 1, model.device)
    hidden_NH: torch.Tensor = hidden_BLH.flatten(0, 1).index_select(0, places_N)
    return hidden_NH
