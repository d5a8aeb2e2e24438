"""A policy's weights as Hugging Face files, of which each rank writes and reads its own part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from mugrpo.model.dtensors import full, local, rows_of, tensors_of
from mugrpo.processes.ranks import Ranks

_INDEX = "model.safetensors.index.json"

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Weights:
    """What a rank writes of a model. Writing it does not touch the model, which may be in use."""

    tensors: Tensors
    index: dict[str, Any]  # transformers' index of all files


def weights_in_memory(model: Any, ranks: Ranks, parts: int, *, copied: bool) -> Weights:
    """Return the weights that this rank writes, by name and in CPU memory; tied ones once.

    They are cut into `parts` of whole tensors, one for each of the first ranks. If `copied`, later
    updates do not change them. Ranks that split the model must all call this.
    """
    tensors = _saved(model)
    writers = _writers(tensors, parts)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    places = {name: _part(rank, parts) for name, rank in writers.items()}
    kept = {}
    for name, tensor in tensors.items():
        whole = full(tensor)
        if writers[name] == ranks.rank:
            kept[name] = whole.to("cpu", copy=copied)
    return Weights(kept, {"metadata": {"total_size": size}, "weight_map": places})


def write_weights(model: Any, weights: Weights, ranks: Ranks, parts: int, folder: Path) -> None:
    """Write this rank's `weights`. The first rank adds the model's config. No rank waits."""
    if parts == 1:
        if ranks.first:
            model.save_pretrained(folder, state_dict=dict(weights.tensors))
        return
    save_file(weights.tensors, folder / _part(ranks.rank, parts), {"format": "pt"})
    if not ranks.first:
        return
    model.config.dtype = str(model.dtype).removeprefix("torch.")  # as transformers does
    model.config.architectures = [type(model).__name__.removeprefix("FSDP")]
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    (folder / _INDEX).write_text(json.dumps(weights.index, indent=1) + "\n")


def read_rows(model: nn.Module, folder: Path) -> bool:
    """Load the rows that this rank holds of each weight, as `write_weights` wrote them.

    Return False, with nothing loaded, if the files have other names or shapes.
    """
    targets = _saved(model)
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


def _saved(model: nn.Module) -> Tensors:
    """Return the tensors that files of the model hold; tied ones once."""
    names = model.state_dict().keys()
    return {name: tensor for name, tensor in tensors_of(model).items() if name in names}


def _writers(tensors: Tensors, parts: int) -> dict[str, int]:
    """Return the rank that writes each tensor: of the first `parts`, the one with the least."""
    writers, sizes = {}, [0] * parts
    for name, tensor in tensors.items():
        writers[name] = sizes.index(min(sizes))
        sizes[writers[name]] += tensor.numel()
    return writers


def _part(rank: int, parts: int) -> str:
    return f"model-{rank + 1:05d}-of-{parts:05d}.safetensors"
