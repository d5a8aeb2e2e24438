"""Copies of tensors for a thread that writes them while updates go on."""

from __future__ import annotations

import torch


class Copies:
    """Copies in CPU memory, by name. A later copy takes the place of the one before.

    To get new memory from the kernel takes ten times as long as to fill it (docs/log.md).
    """

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def of(self, name: str, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a contiguous copy of `tensor`, rounded to `dtype` if it is given.

        What an earlier call has returned for `name` is overwritten if it has the same form.
        """
        dtype = dtype or tensor.dtype
        kept = self._kept.get(name)
        if kept is None or (kept.shape, kept.dtype) != (tensor.shape, dtype):
            kept = self._kept[name] = torch.empty(tensor.shape, dtype=dtype)
        return kept.copy_(tensor.detach())
