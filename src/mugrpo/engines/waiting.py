"""Requests that wait for a slot, and their prompts, which are computed once for all responses.

Suffixes: U prompts, P prompt tokens (left-padded), V vocabulary, H heads, D head dimension.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from mugrpo.engines.base import Request
from mugrpo.engines.cache import KeysValues, cache_argument
from mugrpo.engines.sampling import left_padded
from mugrpo.model.policy import Policy

# The model's output for a prompt: keys and values of each layer, both [H, P, D], and the logits [V]
# of the first response token.
Prefilled = tuple[list[KeysValues], torch.Tensor]

# Padded prompt tokens that go through the model together. More of them keep a GPU's units busy; a
# CPU has enough to do, and its caches are small.
_TOGETHER = {"cpu": 2048}
_ON_GPU = 16_384


@torch.inference_mode()
def prefill(policy: Policy, prompts: Sequence[np.ndarray]) -> list[Prefilled]:
    """Return each prompt's keys and values in every layer, and the logits after its last token."""
    ids_UP, mask_UP = left_padded(prompts, policy)
    cache, model = DynamicCache(), policy.working()
    logits_UV = model(
        input_ids=ids_UP,
        attention_mask=mask_UP,
        position_ids=(mask_UP.cumsum(-1) - 1).clamp(min=0),
        use_cache=True,
        logits_to_keep=1,
        **cache_argument(cache, model),
    ).logits[:, -1]
    cached: Any = cache.layers
    prefilled = []
    for row, prompt in enumerate(prompts):
        begin = ids_UP.shape[1] - len(prompt)
        layers = [(c.keys[row, :, begin:], c.values[row, :, begin:]) for c in cached]
        prefilled.append((layers, logits_UV[row]))
    return prefilled


class Waiting:
    """Requests in the order in which they begin, and the prompts that are computed for them."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._requests: deque[tuple[int, Request]] = deque()  # with their indices
        self._ready: dict[bytes, Prefilled] = {}  # prompts of waiting requests
        self._together = _TOGETHER.get(policy.device.type, _ON_GPU)

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, requests: Mapping[int, Request]) -> None:
        self._requests.extend(requests.items())

    def groups(self, free: int) -> Iterator[tuple[Prefilled, list[tuple[int, Request]]]]:
        """Yield the next requests, at most `free`, with their indices: neighbors with one prompt.

        Drop a computed prompt once the next request has another one.
        """
        while free and (key := self._next_prompt()):
            if key not in self._ready:
                self._prefill()
            begun: list[tuple[int, Request]] = []
            while len(begun) < free and self._next_prompt() == key:
                begun.append(self._requests.popleft())
            free -= len(begun)
            prefilled = self._ready[key]
            if self._next_prompt() != key:
                del self._ready[key]
            yield prefilled, begun

    def _next_prompt(self) -> bytes | None:
        """Return the bytes of the prompt of the request that waits longest, if any waits."""
        return self._requests[0][1].prompt_ids.tobytes() if self._requests else None

    def _prefill(self) -> None:
        """Prefill the next waiting prompts, as many as fit together with padding.

        At least one prompt is computed, however long.
        """
        chosen: dict[bytes, np.ndarray] = {}
        longest = 0
        for _, request in self._requests:
            key = request.prompt_ids.tobytes()
            if key in self._ready or key in chosen:
                continue
            longest = max(longest, len(request.prompt_ids))
            if chosen and longest * (len(chosen) + 1) > self._together:
                break
            chosen[key] = request.prompt_ids
        prefilled = prefill(self._policy, list(chosen.values()))
        self._ready.update(zip(chosen, prefilled, strict=True))
