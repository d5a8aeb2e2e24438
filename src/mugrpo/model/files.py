"""A policy's weights as Hugging Face files. Each rank writes a file and reads its own rows.

The tensors are dealt out to as many files as there are ranks that split the model. Each rank sends
the rows that it holds of a tensor to the one whose file it is in. No rank holds more than its
own file, and only it writes that file.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import nn
from torch.distributed.tensor import DTensor

from mugrpo.model.dtensors import local, own_rows, tensors_of
from mugrpo.model.host_memory import HostMemory, Rooms
from mugrpo.processes.ranks import Ranks

_INDEX = "model.safetensors.index.json"
_PIECE = 1 << 25  # bytes that are written at once
_TYPES = {  # names of types in safetensors files
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class ModelPart:
    """What a rank writes of a model. Writing it does not touch the model, which may be in use."""

    tensors: Tensors  # whole ones, in CPU memory
    file: str = ""  # the file's name if the model has several; transformers names a single one
    index: dict[str, Any] = field(default_factory=dict)  # transformers' index of several files


def weights_in_memory(
    tensors: Tensors,
    files: int,
    *,
    own: int | None,
    host: HostMemory | None,
    dtype: torch.dtype | None = None,
) -> ModelPart:
    """Return what this rank writes of `tensors`, a model's by name, in CPU memory.

    It writes file number `own`, or none. Ranks that split the model must all call this. If
    `host` is given, the tensors are copied there, and later updates do not change them.
    Floating-point numbers are rounded to `dtype`, if it is given.
    """
    types = {
        name: dtype if dtype and t.is_floating_point() else t.dtype for name, t in tensors.items()
    }
    sizes = {name: t.numel() * types[name].itemsize for name, t in tensors.items()}
    owners = _dealt(sizes, files)
    own_sizes = (size for name, size in sizes.items() if owners[name] == own)
    rooms = None if host is None else host.rooms(own_sizes)
    mine: Tensors = {}
    for name, tensor in tensors.items():
        whole = _sent(tensor, types[name], owners[name], own)
        if whole is not None and owners[name] == own:
            mine[name] = in_memory(whole, types[name], rooms)
    if files == 1 or own is None:
        return ModelPart(mine)
    index = {name: _file(owner, files) for name, owner in owners.items()}
    total = {"total_size": sum(sizes.values())}
    return ModelPart(mine, _file(own, files), {"metadata": total, "weight_map": index})


def _sent(
    tensor: torch.Tensor, dtype: torch.dtype, owner: int, own: int | None
) -> torch.Tensor | None:
    """Return the whole tensor on the rank `owner`; other ranks send it their rows.

    `DTensor.full_tensor` would send every tensor to every rank, over gloo if weights are in host
    memory: as many times the bytes as there are ranks.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    mesh = tensor.device_mesh
    each = math.ceil(len(tensor) / mesh.size())  # rows per rank; the last ones may have fewer
    rows = local(tensor).to(dtype).reshape(len(local(tensor)), math.prod(tensor.shape[1:]))
    padded = rows.new_zeros(each, rows.shape[1])
    padded[: len(rows)] = rows
    sent = padded.view(torch.uint8)  # gloo knows few types
    if owner != own:
        dist.gather(sent, group_dst=owner, group=mesh.get_group())
        return None
    received = sent.new_empty(mesh.size() * each, sent.shape[1])
    dist.gather(sent, list(received.split(each)), group_dst=owner, group=mesh.get_group())
    return received.view(dtype)[: len(tensor)].view(tensor.shape)


def in_memory(tensor: torch.Tensor, dtype: torch.dtype, rooms: Rooms | None) -> torch.Tensor:
    """Return the tensor in CPU memory: a copy, if there are `rooms` for it."""
    if rooms is None:
        return tensor.to("cpu", dtype).contiguous()
    return rooms(tensor, dtype).copy_(tensor)


def write_weights(model: Any, weights: ModelPart, ranks: Ranks, folder: Path) -> dict[str, str]:
    """Write this rank's `weights`. The first rank adds the model's config. No rank waits.

    Return {file name: checksum}, or {} if transformers wrote the file.
    """
    if not weights.index:
        if ranks.first:
            save_model(model, folder, state_dict=dict(weights.tensors))
        return {}
    # Engines read the file soon, from the page cache.
    sums = {weights.file: write_tensors(folder / weights.file, weights.tensors, cached=True)}
    if ranks.first:
        model.config.dtype = str(model.dtype).removeprefix("torch.")  # as transformers does
        model.config.architectures = [type(model).__name__.removeprefix("FSDP")]
        model.config.save_pretrained(folder)
        if model.can_generate():
            model.generation_config.save_pretrained(folder)
        (folder / _INDEX).write_text(json.dumps(weights.index, indent=1) + "\n")
    return sums


def save_model(model: Any, folder: Path, **options: Any) -> None:
    """Save a model as transformers does, for everybody who may read the files beside it."""
    model.save_pretrained(folder, **options)
    readable_as(folder / "config.json")


def readable_as(file: Path) -> None:
    """Give the safetensors files beside `file` its mode: safetensors gives them 0600."""
    for weights in file.parent.glob("*.safetensors"):
        weights.chmod(file.stat().st_mode & 0o777)


def write_tensors(path: Path, tensors: Tensors, *, cached: bool = False) -> str:
    """Write `tensors`, which are in CPU memory, as a safetensors file. Return its checksum.

    safetensors' own writer gives no checksum, so the file would be read again for it, and leaves
    all of it in the page cache, where it takes the room of files that somebody reads. Unless the
    file is to be `cached`, it leaves the cache while it is written: the kernel would wait until new
    pages fill a share of the memory, and the fsync for all of them (500 MB took 3.2 to 3.8 s, and
    2.2 s with this, as with O_DIRECT).
    """
    # The largest numbers come first, so all are aligned. The order of `tensors` does not matter.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # without it, transformers refuses
    offset = 0
    for name, tensor in ordered:
        end = offset + tensor.nbytes
        place = {"shape": [*tensor.shape], "data_offsets": [offset, end]}
        header[name] = {"dtype": _TYPES[tensor.dtype], **place}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    parts = [memoryview(len(text).to_bytes(8, "little") + text)]
    parts += [tensor.view(-1).view(torch.uint8).numpy().data for _, tensor in ordered]
    sha256 = hashlib.sha256()
    with open(path, "wb") as file:
        for part in parts:
            for start in range(0, len(part), _PIECE):
                piece = part[start : start + _PIECE]
                file.write(piece)
                sha256.update(piece)
                if not cached and len(piece) == _PIECE:
                    _send_to_disk(file.fileno())
        if not cached:
            file.flush()
            os.fsync(file.fileno())
            _send_to_disk(file.fileno())
    return sha256.hexdigest()


def _send_to_disk(descriptor: int) -> None:
    """Let the kernel begin to write the file's new pages, and drop those that are on the disk."""
    if hasattr(os, "posix_fadvise"):  # macOS has none
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def read_rows(model: nn.Module, folder: Path) -> bool:
    """Load the rows that this rank holds of each weight, as `write_weights` wrote them.

    Return False, with nothing loaded, if the files have other names or shapes.
    """
    targets = saved_tensors(model)
    files = [safe_open(file, framework="pt") for file in sorted(folder.glob("model*.safetensors"))]
    found: Mapping[str, Any] = {name: file for file in files for name in file.keys()}  # noqa: SIM118
    if found.keys() != targets.keys():
        return False
    slices = {name: file.get_slice(name) for name, file in found.items()}
    if any(list(targets[name].shape) != rows.get_shape() for name, rows in slices.items()):
        return False
    for name, target in targets.items():
        rows = slices[name][own_rows(target)] if target.ndim else found[name].get_tensor(name)
        local(target).copy_(rows)
    return True


def saved_tensors(model: nn.Module) -> Tensors:
    """Return the tensors that files of the model hold; tied ones once."""
    names = model.state_dict().keys()
    return {name: tensor for name, tensor in tensors_of(model).items() if name in names}


def _dealt(sizes: Mapping[str, int], files: int) -> dict[str, int]:
    """Return the file of each tensor: each goes to the one that is smallest so far."""
    filled, owners = [0] * files, {}
    for name, size in sizes.items():
        owners[name] = smallest = filled.index(min(filled))
        filled[smallest] += size
    return owners


def _file(number: int, files: int) -> str:
    return f"model-{number + 1:05d}-of-{files:05d}.safetensors"
