"""The optimizer's state on disk: one file per rank with that rank's rows, and no pickles.

A single rank writes `optimizer.safetensors`. Several write `optimizer-00001-of-00002.safetensors`
and so on. A rank that loads them reads its own rows only, from whichever files hold them, so any
number of ranks can resume.

Why not torch.distributed.checkpoint? It loads the same bits, but takes longer to save (50 M
parameters: 2.2 s instead of 1.45 on one rank, 2.3 instead of 1.9 on two, and 0.6 to 1 s more for
the checksums that are included here), and no engine reads its files.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from mugrpo.disk.errors import RunStopped
from mugrpo.model.dtensors import like, local, own_rows
from mugrpo.model.files import in_memory, write_tensors
from mugrpo.model.host_memory import HostMemory
from mugrpo.processes.ranks import Ranks

_RNG = "rng/cpu"


def optimizer_in_memory(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    ranks: Ranks,
    *,
    host: HostMemory | None,
) -> dict[str, torch.Tensor]:
    """Return this rank's part of the state in CPU memory, under the parameters' `names`.

    Rank 0 adds torch's random state. If `host` is given, the state is copied there, and later
    updates do not change it.
    """
    values = (local(value) for state in optimizer.state.values() for value in state.values())
    rooms = None if host is None else host.rooms(value.nbytes for value in values)
    tensors = {
        f"{names[parameter]}/{key}": in_memory(local(value), value.dtype, rooms)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }
    if ranks.first:
        tensors[_RNG] = torch.get_rng_state()
    return tensors


def write_optimizer(
    folder: Path, tensors: dict[str, torch.Tensor], shard: tuple[int, int]
) -> dict[str, str]:
    """Write this rank's part of the state: its `shard`.

    Return the file's checksum under its name. No rank waits for another.
    """
    name = _name(*shard)
    return {name: write_tensors(folder / name, tensors)}


def load_optimizer(
    folder: Path, optimizer: torch.optim.Optimizer, parameters: dict[str, torch.Tensor]
) -> None:
    """Load the state, however many ranks wrote it. Raises RunStopped if a part is missing."""
    files = sorted(folder.glob("optimizer*.safetensors"))
    if not files or len(files) != _ranks_of(files[0]):
        raise RunStopped(f"{folder} lacks parts of the optimizer's state; use another checkpoint")
    optimizer.state.clear()
    opened = [safe_open(file, framework="pt") for file in files]
    for name in opened[0].keys():  # noqa: SIM118 - not a dictionary
        if name == _RNG:
            torch.set_rng_state(opened[0].get_tensor(name))
            continue
        parameter_name, _, key = name.rpartition("/")
        parameter = parameters[parameter_name]
        if not opened[0].get_slice(name).get_shape():  # AdamW's step count
            count = opened[0].get_tensor(name).clone()  # on the device where fused AdamW counts
            optimizer.state[parameter][key] = count.to(local(parameter).device)
            continue
        rows = _rows(opened, name, own_rows(parameter))
        optimizer.state[parameter][key] = like(rows, parameter)


def _rows(files: Sequence[Any], name: str, wanted: slice) -> torch.Tensor:
    """Return the `wanted` rows of a tensor whose rows are spread over `files`, in order."""
    parts, first = [], 0
    for file in files:
        part = file.get_slice(name)
        end = first + part.get_shape()[0]
        start, stop = max(wanted.start, first), min(wanted.stop, end)
        if start < stop:
            parts.append(part[start - first : stop - first])
        first = end
    return torch.cat(parts) if parts else files[0].get_slice(name)[0:0]


def _name(shard: int, shards: int) -> str:
    part = "" if shards == 1 else f"-{shard + 1:05d}-of-{shards:05d}"
    return f"optimizer{part}.safetensors"


def _ranks_of(file: Path) -> int:
    match = re.search(r"-of-(\d+)\.safetensors$", file.name)
    return int(match[1]) if match else 1
