"""The device and the precision that models compute with on this machine."""

import errno
import os
import re
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.processes.messages import first_line

Precision = Literal["fp32", "bf16"]

_DEVICES = partial(Path("/dev").glob, "nvidia[0-9]*")
_WSL = Path("/usr/lib/wsl/lib/libcuda.so.1")  # the driver of Windows


def device() -> str:
    """Return where models compute: on the GPU, if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def gpu_memory() -> int:
    """Return the bytes of the smallest GPU that this process sees."""
    gpus = range(torch.cuda.device_count())
    return int(min(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus))


def unusable_gpu() -> tuple[str, str] | None:
    """Return why torch cannot use this machine's GPU, and the remedy; None if all is well.

    The sign of a GPU that torch does not see is its device file, if it opens: a container and a job
    of Slurm get those of their GPUs only, while /proc and nvidia-smi show those of others. WSL has
    other files. An empty CUDA_VISIBLE_DEVICES, or one that begins with no GPU's name, hides all of
    them on purpose.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = hidden is not None and not re.match(r"\s*(\d|GPU-|MIG-)", hidden)
    if torch.cuda.is_available():
        reason = _lacks_kernels()
    elif chosen or not (any(map(_opens, _DEVICES())) or _WSL.exists()):
        reason = ""
    else:
        reason = "it is built without CUDA"
        if torch.version.cuda:
            try:
                torch.cuda.init()
            except (AssertionError, RuntimeError) as error:
                reason = first_line(error).partition(". ")[0]
        reason += f" (CUDA_VISIBLE_DEVICES={hidden})" * (hidden is not None)
    if not reason:
        return None
    return (
        f"torch {torch.__version__} cannot use this machine's GPU: {reason}",
        "install a torch that fits the GPU and its driver (nvidia-smi shows the driver's CUDA), or "
        "set CUDA_VISIBLE_DEVICES= to compute on the CPU",
    )


def _lacks_kernels() -> str:
    """Return which GPU this build of torch has no kernels for, if any: the first one is older."""
    built = re.findall(r"sm_(\d+)", " ".join(torch.cuda.get_arch_list()))
    major, minor = torch.cuda.get_device_capability()
    if built and 10 * major + minor < min(map(int, built)):
        return f"it has no kernels for the compute capability {major}.{minor}"
    return ""


def _opens(device: Path) -> bool:
    """Return whether a device file opens, or would if its device worked."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.EIO
    return True


def precision_of(options: ModelOptions, *, elsewhere: bool = False) -> Precision:
    """Return the model's precision here: "auto" is bf16 on a GPU that computes in it, else fp32.

    `elsewhere` is on such a GPU.
    """
    if options.precision != "auto":
        return options.precision
    here = device() == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if elsewhere or here else "fp32"


def with_precision(config: RunConfig, *, elsewhere: bool = False) -> RunConfig:
    """Return `config` with the precision that "auto" stands for here, or `elsewhere`."""
    precision = precision_of(config.model, elsewhere=elsewhere)
    model = config.model.model_copy(update={"precision": precision})
    return config.model_copy(update={"model": model})


def arithmetic() -> str:
    """Return what decides how this machine rounds: the GPU's name, or the CPU's vector units."""
    if device() == "cuda":
        return str(torch.cuda.get_device_name())
    return torch.backends.cpu.get_cpu_capability()
