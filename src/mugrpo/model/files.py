"""A policy's weights as Hugging Face files. Each rank writes and reads its own rows of them.

The tensors are dealt out to as many files as there are ranks that split the model. Each writes its
rows where these belong in each file, so no tensor is ever gathered.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from mugrpo.disk.direct import direct
from mugrpo.model.dtensors import full, local, rows_of, tensors_of
from mugrpo.processes.ranks import Ranks

_INDEX = "model.safetensors.index.json"
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

    tensors: Tensors  # this rank's rows, or whole tensors if only the first rank writes
    places: dict[str, tuple[str, int]] = field(default_factory=dict)  # file and offset of each
    headers: dict[str, bytes] = field(default_factory=dict)  # of the files
    index: dict[str, Any] = field(default_factory=dict)  # transformers' index of the files


def weights_in_memory(
    tensors: Tensors, files: int, *, writes: bool, copied: bool, dtype: torch.dtype | None = None
) -> Weights:
    """Return what this rank writes of `tensors`, a model's by name, in CPU memory.

    With one file, these are whole tensors, and ranks that split the model must all call this. With
    several, they are the rank's rows. If `copied`, later updates do not change them. Floating-point
    numbers are rounded to `dtype`, if it is given.
    """

    def type_of(name: str) -> torch.dtype:
        own = tensors[name].dtype
        return dtype if dtype and own.is_floating_point else own

    def kept(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cpu", type_of(name), copy=copied).contiguous()

    if files == 1:
        whole = ((name, full(tensor)) for name, tensor in tensors.items())
        return Weights({name: kept(name, tensor) for name, tensor in whole if writes})
    held = tensors if writes else {}
    rows = {name: kept(name, local(tensor)) for name, tensor in held.items()}
    sizes = {name: t.numel() * type_of(name).itemsize for name, t in tensors.items()}
    places, headers = {}, {}
    for number, names in enumerate(_dealt(sizes, files)):
        file, offset, starts = _file(number, files), 0, {}
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        for name in names:
            starts[name] = offset
            header[name] = _entry(type_of(name), tensors[name].shape, offset)
            offset += sizes[name]
        headers[file] = _framed(header)
        for name, start in starts.items():
            before = _numbers_before(tensors[name]) * type_of(name).itemsize
            places[name] = file, len(headers[file]) + start + before
    index = {name: file for name, (file, _) in places.items()}
    total = {"total_size": sum(sizes.values())}
    return Weights(rows, places, headers, {"metadata": total, "weight_map": index})


def write_weights(model: Any, weights: Weights, ranks: Ranks, folder: Path) -> None:
    """Write this rank's `weights`. The first rank adds the model's config. No rank waits."""
    if not weights.headers:
        if ranks.first:
            save_model(model, folder, state_dict=dict(weights.tensors))
        return
    for name, header in weights.headers.items() if weights.tensors else ():
        with open(folder / name, "wb", opener=_keeping) as file:
            if ranks.first:
                file.write(header)
            for tensor, rows in weights.tensors.items():
                place, offset = weights.places[tensor]
                if place == name and rows.numel():
                    # Without a lock, a network file system may write whole pages.
                    fcntl.lockf(file, fcntl.LOCK_EX, rows.nbytes, offset)
                    file.seek(offset)
                    file.write(_bytes_of(rows))
    if not ranks.first:
        return
    model.config.dtype = str(model.dtype).removeprefix("torch.")  # as transformers does
    model.config.architectures = [type(model).__name__.removeprefix("FSDP")]
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    (folder / _INDEX).write_text(json.dumps(weights.index, indent=1) + "\n")


def save_model(model: Any, folder: Path, **options: Any) -> None:
    """Save a model as transformers does, for everybody who may read the files beside it."""
    model.save_pretrained(folder, **options)
    readable_as(folder / "config.json")


def readable_as(file: Path) -> None:
    """Give the safetensors files beside `file` its mode: safetensors gives them 0600."""
    for weights in file.parent.glob("*.safetensors"):
        weights.chmod(file.stat().st_mode & 0o777)


def write_tensors(path: Path, tensors: Tensors) -> str:
    """Write `tensors`, which are in CPU memory, as a safetensors file. Return its checksum.

    It is computed on the way, so nobody has to read the file for it.
    """
    # The largest numbers come first, so all are aligned. The order of `tensors` does not matter.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header, offset = {}, 0
    for name, tensor in ordered:
        header[name] = _entry(tensor.dtype, tensor.shape, offset)
        offset += tensor.nbytes
    parts: list[bytes | memoryview] = [_framed(header), *(_bytes_of(t) for _, t in ordered)]
    sha256 = hashlib.sha256()
    with direct(path) as file:
        for part in parts:
            file.write(part)
            sha256.update(part)
    return sha256.hexdigest()


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


def _numbers_before(tensor: torch.Tensor) -> int:
    """Return how many numbers are in the rows before those that this rank holds."""
    return rows_of(tensor).start * math.prod(tensor.shape[1:]) if tensor.ndim else 0


def _dealt(sizes: Mapping[str, int], files: int) -> list[list[str]]:
    """Return the names of the tensors in each of `files`: each goes to the smallest one."""
    names: list[list[str]] = [[] for _ in range(files)]
    filled = [0] * files
    for name, size in sizes.items():
        smallest = filled.index(min(filled))
        names[smallest].append(name)
        filled[smallest] += size
    return names


def _entry(dtype: torch.dtype, shape: Sequence[int], start: int) -> dict[str, Any]:
    """Return what the header says of a tensor whose numbers begin `start` bytes after it."""
    end = start + math.prod(shape) * dtype.itemsize
    return {"dtype": _TYPES[dtype], "shape": [*shape], "data_offsets": [start, end]}


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the tensor's numbers as they are in memory."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def _framed(header: Mapping[str, Any]) -> bytes:
    """Return the header as a safetensors file begins with it: its length, then JSON."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _keeping(path: str, _flags: int) -> int:
    """Open a file for writing without discarding what other ranks have written."""
    return os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)


def _file(number: int, files: int) -> str:
    return f"model-{number + 1:05d}-of-{files:05d}.safetensors"
