"""Tensors that ranks share by their first dimension, and plain ones, in the same words."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, distribute_tensor


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
