"""Keys and values of sequences that come and go, in place: a cache with one slot a sequence.

Suffixes: A active slots, H key-value heads, L places of a slot, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache

KeysValues = tuple[torch.Tensor, torch.Tensor]  # of one layer, [H, tokens, D] both

_ROOM = 64  # places that are made beyond the longest sequence, so that growing is rare


class SlotCache(Cache):
    """The first slots are in use, one a sequence; each sequence has a length of its own."""

    def __init__(self, slots: int) -> None:
        super().__init__(layers=[])
        self.slots = slots
        self._live = 0
        self._place_A = self._row_A = torch.zeros(0, dtype=torch.int64)
        self._kept: list[list[torch.Tensor]] = []  # keys and values of each layer, [slots, H, L, D]

    def aim(self, place_A: torch.Tensor, live: int) -> None:
        """Let the next forward pass write a token of each of the first A slots to `place_A`.

        Attention looks at the first `live` places.
        """
        self._live, self._place_A = live, place_A
        self._row_A = torch.arange(len(place_A), device=place_A.device)
        self._reach(live)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> KeysValues:
        """Write a step's keys and values, [A, H, 1, D]; returns all that attention looks at."""
        kept = self._kept[layer_idx]
        for into, new in zip(kept, (key_states, value_states), strict=True):
            into[self._row_A, :, self._place_A] = new[:, :, 0].to(into.dtype)
        keys, values = (into[: len(self._row_A), :, : self._live] for into in kept)
        return keys, values

    def begin(self, rows: torch.Tensor, prompt: list[KeysValues]) -> None:
        """Put a prompt's keys and values into the slots `rows`."""
        if not self._kept:
            self._kept = [
                [one.new_zeros(self.slots, len(one), 0, one.shape[-1]) for one in layer]
                for layer in prompt
            ]
        length = prompt[0][0].shape[1]
        self._reach(length)
        for kept, layer in zip(self._kept, prompt, strict=True):
            for into, new in zip(kept, layer, strict=True):
                into[rows, :, :length] = new

    def move(self, source: torch.Tensor, target: torch.Tensor, live: int) -> None:
        """Copy the first `live` places of the slots `source` to the slots `target`."""
        for kept in self._kept:
            for one in kept:
                one[target, :, :live] = one[source, :, :live]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._live - 1

    def _reach(self, length: int) -> None:
        """Make room for sequences of `length`: half as much again where there is too little."""
        have = self._kept[0][0].shape[2]
        if length > have:
            more = max(length + _ROOM, have * 3 // 2) - have
            self._kept = [
                [torch.nn.functional.pad(one, (0, 0, 0, more)) for one in kept]
                for kept in self._kept
            ]
