"""A policy's weights as Hugging Face files. Each rank writes a file and reads its own rows.

The tensors are dealt out to as many files as there are ranks that split the model. Each rank sends
the rows that it holds of a tensor to the one whose file it is in. So no rank ever holds more than
its file, and no other process opens it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from mugrpo.processes.ranks import Ranks

_INDEX = "model.safetensors.index.json"
_AT_ONCE = 1 << 26  # bytes that a rank sends to others at once, but for a larger tensor
_PIECE = 1 << 25  # bytes that are written at once
_TYPES = {  # names of types in safetensors files
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Weights:
    """What a rank writes of a model. Writing it does not touch the model, which may be in use."""

    tensors: Tensors  # whole ones, in CPU memory
    file: str = ""  # their name, if the model has several files; transformers names a single one
    index: dict[str, Any] = field(default_factory=dict)  # transformers' index of several files


def weights_in_memory(
    tensors: Tensors,
    files: int,
    *,
    own: int | None,
    copied: bool,
    dtype: torch.dtype | None = None,
) -> Weights:
    """Return what this rank writes of `tensors`, a model's by name, in CPU memory.

    It writes file number `own`, or none. Ranks that split the model must all call this; with
    several files, those that write. If `copied`, later updates do not change what is returned.
    Floating-point numbers are rounded to `dtype`, if it is given.
    """

    def type_of(name: str) -> torch.dtype:
        own_type = tensors[name].dtype
        return dtype if dtype and own_type.is_floating_point else own_type

    def kept(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cpu", type_of(name), copy=copied).contiguous()

    if files == 1:
        whole = ((name, full(tensor)) for name, tensor in tensors.items())
        return Weights({name: kept(name, t) for name, t in whole if own is not None})
    if own is None:
        return Weights({})
    sizes = {name: t.numel() * type_of(name).itemsize for name, t in tensors.items()}
    dealt = _dealt(sizes, files)
    held = {name: kept(name, tensors[name]) for name in dealt[own] if not _split(tensors[name])}
    for names in _together(tensors, sizes, files):
        held |= _exchanged({name: tensors[name] for name in names}, dealt, own, type_of)
    index = {name: _file(number, files) for number, part in enumerate(dealt) for name in part}
    total = {"total_size": sum(sizes.values())}
    return Weights(held, _file(own, files), {"metadata": total, "weight_map": index})


def write_weights(model: Any, weights: Weights, ranks: Ranks, folder: Path) -> dict[str, str]:
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

    It is computed on the way, so nobody has to read the file for it. Unless it is to be `cached`,
    it leaves the page cache, where it would take the room of files that somebody reads.
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
    parts: list[bytes | memoryview] = [_framed(header), *(_bytes_of(t) for _, t in ordered)]
    sha256 = hashlib.sha256()
    waiting = 0  # bytes
    with open(path, "wb") as file:
        for part in parts:
            for start in range(0, len(part), _PIECE):
                piece = part[start : start + _PIECE]
                file.write(piece)
                sha256.update(piece)
                waiting += len(piece)
                if not cached and waiting >= _PIECE:
                    _send_to_disk(file.fileno())
                    waiting = 0
        if not cached:
            file.flush()
            os.fsync(file.fileno())
            _send_to_disk(file.fileno())
    return sha256.hexdigest()


def _send_to_disk(descriptor: int) -> None:
    """Let the kernel begin to write the file's new pages, and drop those that are on the disk.

    Otherwise it waits until they fill a share of the memory, and the fsync waits for all of them:
    500 MB took 3.2 to 3.8 s, and 2.2 s with this, as with O_DIRECT.
    """
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
        rows = slices[name][rows_of(target)] if target.ndim else found[name].get_tensor(name)
        local(target).copy_(rows)
    return True


def saved_tensors(model: nn.Module) -> Tensors:
    """Return the tensors that files of the model hold; tied ones once."""
    names = model.state_dict().keys()
    return {name: tensor for name, tensor in tensors_of(model).items() if name in names}


def _split(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, DTensor)


def _together(tensors: Tensors, sizes: Mapping[str, int], files: int) -> Iterator[list[str]]:
    """Yield the names of tensors whose rows are sent at once, which takes room on their device."""
    names: list[str] = []
    for name in filter(lambda name: _split(tensors[name]), tensors):
        if names and sum(sizes[n] for n in (*names, name)) > _AT_ONCE * files:
            yield names
            names = []
        names.append(name)
    if names:
        yield names


def _exchanged(
    tensors: Tensors, dealt: list[list[str]], own: int, type_of: Callable[[str], torch.dtype]
) -> Tensors:
    """Return those of the split `tensors` that are dealt to file `own`, whole, in CPU memory.

    All ranks that write call this, and each sends its rows to the others' files.
    """
    parts = [[name for name in part if name in tensors] for part in dealt]

    def own_rows(name: str) -> torch.Tensor:
        return local(tensors[name]).to(type_of(name)).contiguous().view(-1).view(torch.uint8)

    def bytes_from(rank: int, name: str) -> int:
        place, tensor = rows_of(tensors[name], rank), tensors[name]
        numbers = (place.stop - place.start) * math.prod(tensor.shape[1:])
        return int(numbers * type_of(name).itemsize)

    mine = parts[own]
    sent = torch.cat([own_rows(name) for part in parts for name in part])
    to_each = [sum(bytes_from(own, name) for name in part) for part in parts]
    lengths = [[bytes_from(rank, name) for name in mine] for rank in range(len(dealt))]
    received = torch.empty(sum(map(sum, lengths)), dtype=torch.uint8, device=sent.device)
    first = next(iter(tensors.values()))
    assert isinstance(first, DTensor)
    group = first.device_mesh.get_group(first.device_mesh.ndim - 1)
    dist.all_to_all_single(received, sent, [*map(sum, lengths)], to_each, group=group)
    pieces = received.split([length for of_rank in lengths for length in of_rank])
    wholes = {}
    for place, name in enumerate(mine):
        whole = received if len(mine) == 1 else torch.cat(pieces[place :: len(mine)])
        wholes[name] = whole.cpu().view(type_of(name)).view(tensors[name].shape)
    return wholes


def _dealt(sizes: Mapping[str, int], files: int) -> list[list[str]]:
    """Return the names of the tensors in each of `files`: each goes to the smallest one."""
    names: list[list[str]] = [[] for _ in range(files)]
    filled = [0] * files
    for name, size in sizes.items():
        smallest = filled.index(min(filled))
        names[smallest].append(name)
        filled[smallest] += size
    return names


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the tensor's numbers as they are in memory."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def _framed(header: Mapping[str, Any]) -> bytes:
    """Return the header as a safetensors file begins with it: its length, then JSON."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _file(number: int, files: int) -> str:
    return f"model-{number + 1:05d}-of-{files:05d}.safetensors"


# One interface to plain tensors and to tensors that ranks split by their first dimension.


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole tensor. If it is a DTensor, every rank must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rows that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def rows_of(tensor: torch.Tensor, rank: int | None = None) -> slice:
    """Return which rows of the whole tensor this rank holds, or another one that splits it."""
    if not isinstance(tensor, DTensor):
        return slice(0, len(tensor))
    mesh = tensor.device_mesh  # its last dimension splits; one before it holds replicas
    rank = mesh.get_local_rank(mesh.ndim - 1) if rank is None else rank
    per_rank = math.ceil(len(tensor) / mesh.size(mesh.ndim - 1))
    start = min(rank * per_rank, len(tensor))
    return slice(start, min(start + per_rank, len(tensor)))


def like(rows: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is split like `tensor` and whose rows on this rank are `rows`.

    It is on the device that holds this rank's rows of `tensor`: the CPU, if they are offloaded.
    """
    # DTensor.from_local would move the rows to the GPU.
    made = torch.empty_like(tensor, dtype=rows.dtype, requires_grad=False)
    local(made).copy_(rows)
    return made


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the tensor on `device`: itself if it is there already. Host memory is pinned.

    The copy may still be under way when this returns, see `torch.cuda.synchronize`.
    """
    if local(tensor).device.type == device.type:
        return tensor
    # Copies between a GPU and memory that is not pinned go through a small buffer of the driver's.
    pinned = device.type == "cpu" and torch.cuda.is_available()
    made = torch.empty_like(tensor, device=device, pin_memory=pinned)
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
