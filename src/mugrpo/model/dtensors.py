"""Tensors that ranks share by their first dimension, and plain ones, in the same words."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from mugrpo.processes.ranks import Ranks


def full(tensor: torch.Tensor) -> torch.Tensor:
    """All of it. Of a shared one every rank has to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The rows of this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def like(value: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """`value`, which every rank has all of, shared and placed as `tensor` is."""
    if not isinstance(tensor, DTensor):
        return value.to(tensor.device)
    shared = distribute_tensor(value, tensor.device_mesh, tensor.placements, src_data_rank=None)
    return shared.to(tensor.to_local().device)  # the CPU's, where weights are kept there


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, tied ones once."""
    every = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in every}


def fill(model: nn.Module, source: Mapping[str, torch.Tensor] | None, ranks: Ranks) -> None:
    """Give each rank its rows of what the first has as `source`: `tensors_of` a like model.

    Parameters travel one at a time, so that no rank but the first ever holds more than one whole.
    """
    buffers = dict(model.named_buffers())
    sent = source and {name: source[name].cpu() for name in buffers}
    received: Mapping[str, torch.Tensor] = ranks.from_first(sent)
    for name, buffer in buffers.items():
        buffer.copy_(received[name])
    for name, own in tensors_of(model).items():
        if name not in buffers:
            assert isinstance(own, DTensor), name
            whole = torch.empty(own.shape, dtype=own.dtype) if source is None else source[name]
            mine = distribute_tensor(whole, own.device_mesh, own.placements, src_data_rank=0)
            own.to_local().copy_(mine.to_local())
