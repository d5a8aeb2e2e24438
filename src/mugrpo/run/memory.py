"""Whether a run can fit this machine: its weights, gradients and moments, and its checkpoints."""

import shutil

import torch

from mugrpo.config.cores import host_memory
from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.hardware import device, precision_of
from mugrpo.model.loading import sketched

GIB = 1 << 30


def parameters(options: ModelOptions) -> tuple[int, int]:
    """Return the numbers of a model's parameters and layers. No weight is read."""
    model = sketched(options)
    return sum(p.numel() for p in model.parameters()), int(model.config.num_hidden_layers)


def require_room(config: RunConfig, folder: RunDir) -> str:
    """Return a warning if the disk lacks room for the checkpoints that a run will keep, or "".

    Raises UsageError if what every update needs cannot fit this machine's memory: on a CPU the
    system would kill the process without a word. Activations are not counted: an update that runs
    out of memory is computed again in smaller parts.
    """
    weights, _ = parameters(config.model)
    if not config.backend.clustered:  # its machines are others
        _require_memory(config, weights)
    due = sum(map(config.checkpoint_due, range(1, config.schedule.total_updates + 1)))
    keep = config.checkpoint.keep
    kept = min(due, keep + 1) if keep else due  # one is written before the oldest is removed
    need = 12 * weights * (kept - len(folder.checkpoint_updates()))  # fp32, and two moments
    free = shutil.disk_usage(folder.root).free
    if config.lora.rank or need <= free:
        return ""
    return (
        f"warning: {kept} checkpoints take {need / GIB:.0f} GiB more, and {free / GIB:.0f} are "
        f"free in {folder.root}: keep fewer (--checkpoint.keep 2) or save less often "
        "(--checkpoint.every)"
    )


def _require_memory(config: RunConfig, weights: int) -> None:
    trained = 0 if config.lora.rank else weights  # an adapter is a few percent
    copy = 0 if precision_of(config.model) == "fp32" else 2
    need = (4 + copy) * weights + 12 * trained  # fp32, a copy in bf16; gradient and two moments
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
