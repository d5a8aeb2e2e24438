"""Whether a run can fit this machine: its weights, gradients and moments, and its checkpoints."""

import shutil

import torch

from mugrpo.config.cores import host_memory
from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.hardware import device, precision_of
from mugrpo.model.loading import sketched
from mugrpo.model.quantized import BYTES

GIB = 1 << 30


def parameters(options: ModelOptions) -> tuple[int, int]:
    """Return the numbers of a model's parameters and layers. No weight is read."""
    model = sketched(options)
    return sum(p.numel() for p in model.parameters()), int(model.config.num_hidden_layers)


def held(config: RunConfig, weights: int) -> tuple[int, int]:
    """Return the bytes of a model of so many weights, and those with what its updates keep."""
    model = (4 if precision_of(config.model) == "fp32" else 6) * weights  # fp32, and a copy in bf16
    if config.lora.quantize:  # all linear layers but the head, which comes last
        *layers, _ = (m for m in sketched(config.model).modules() if isinstance(m, torch.nn.Linear))
        model -= round((model / weights - BYTES) * sum(m.weight.numel() for m in layers))
    trained = 0 if config.lora.rank else weights  # an adapter is a few percent
    return model, model + 12 * trained  # gradient and two moments


def disk(config: RunConfig, folder: RunDir) -> str:
    """Return what the checkpoints take that a run will keep: a warning if the disk lacks room."""
    due = sum(map(config.checkpoint_due, range(1, config.schedule.total_updates + 1)))
    keep = config.checkpoint.keep
    kept = min(due, keep + 1) if keep else due  # one is written before the oldest is removed
    need = kept - len(folder.checkpoint_updates())
    need *= 0 if config.lora.rank else 12 * parameters(config.model)[0]  # fp32, and two moments
    free = shutil.disk_usage(folder.root).free
    found = f"{kept} checkpoints take {need / GIB:.0f} GiB more, and {free / GIB:.0f} are free in "
    if need <= free:
        return f"disk        {found}{folder.root}"
    return (
        f"warning: {found}{folder.root}: keep fewer (--checkpoint.keep 2) or save less often "
        "(--checkpoint.every)"
    )


def require_room(config: RunConfig, folder: RunDir) -> str:
    """Return a warning if the disk lacks room for the checkpoints that a run will keep, or "".

    Raises UsageError if what every update needs cannot fit this machine's memory: on a CPU the
    system would kill the process without a word. Activations are not counted: an update that runs
    out of memory is computed again in smaller parts.
    """
    if not config.backend.clustered:  # its machines are others
        _require_memory(config, parameters(config.model)[0])
    found = disk(config, folder)
    return found if found.startswith("warning") else ""


def _require_memory(config: RunConfig, weights: int) -> None:
    _, need = held(config, weights)
    if device() == "cpu":
        share, what, room = need, "memory", host_memory()
    else:  # FSDP divides them
        room = torch.cuda.get_device_properties(0).total_memory
        share, what = need // config.distributed.processes, "memory of each GPU"
    if share > room:
        raise UsageError(
            f"weights, gradients and moments take {share / GIB:.1f} GiB of {what}, which has "
            f"{room / GIB:.1f}: use a smaller model, more --distributed.processes with a GPU each, "
            "or train an adapter (--lora.rank 16)"
        )
