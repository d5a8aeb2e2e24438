"""One interface to plain tensors and to tensors that ranks split by their first dimension."""

import math
from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from mugrpo.model.host_memory import Rooms
from mugrpo.processes.ranks import Ranks


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole tensor. If it is a DTensor, every rank must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rows that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def own_rows(tensor: torch.Tensor) -> slice:
    """Return which rows of the whole tensor this rank holds."""
    if not isinstance(tensor, DTensor):
        return slice(0, len(tensor))
    mesh = tensor.device_mesh
    each = math.ceil(len(tensor) / mesh.size())
    start = min(mesh.get_local_rank() * each, len(tensor))
    return slice(start, min(start + each, len(tensor)))


def like(rows: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is split like `tensor` and whose rows on this rank are `rows`.

    It is on the device that holds this rank's rows of `tensor`: the CPU, while they sleep.
    """
    # DTensor.from_local would move the rows to the GPU.
    made = torch.empty_like(tensor, dtype=rows.dtype, requires_grad=False)
    local(made).copy_(rows)
    return made


def moved(tensor: torch.Tensor, device: torch.device, rooms: Rooms | None) -> torch.Tensor:
    """Return the tensor on `device`: itself if it is there already. In host memory it has a room.

    The copy may still be under way when this returns, see `torch.cuda.synchronize`. Call this
    without gradients: they would hide a DTensor's own rows.
    """
    if local(tensor).device.type == device.type:
        return tensor
    made = torch.empty_like(tensor, device=device)
    if rooms is not None and local(tensor).is_contiguous():  # rooms are
        local(made).data = rooms(local(tensor))
    local(made).copy_(local(tensor), non_blocking=True)
    return made


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the model's parameters and buffers by name. Tied ones appear once."""
    named_tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named_tensors}


def fill(model: nn.Module, source: Mapping[str, torch.Tensor] | None, ranks: Ranks) -> None:
    """Copy the values of `source` into `model`. The first rank passes `source`, the others None.

    `source` is `tensors_of` a model of the same architecture. Each rank gets its own rows.
    Parameters are sent one at a time: the other ranks hold at most one whole parameter.
    """
    buffers = dict(model.named_buffers())
    buffer_values = source and {name: source[name].cpu() for name in buffers}
    received: Mapping[str, torch.Tensor] = ranks.from_first(buffer_values)
    for name, buffer in buffers.items():
        buffer.copy_(received[name])
    for name, target in tensors_of(model).items():
        if name not in buffers:
            assert isinstance(target, DTensor), name
            value = (
                torch.empty(target.shape, dtype=target.dtype) if source is None else source[name]
            )
            rows = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=0)
            target.to_local().copy_(rows.to_local())
