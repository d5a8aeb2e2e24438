"""What this machine computes on: its device, and the precision that is fast there."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from mugrpo.config.cores import crowding
from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.disk.errors import UsageError

Precision = Literal["fp32", "bf16"]

_UNITS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512"}  # flags of CPUs that compute in bf16


def device_of(options: ModelOptions) -> str:
    """Return the device of the model. Raises UsageError if it is missing."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("model.device = 'cuda', but torch sees no GPU; use auto or cpu")
    if options.device != "auto":
        return options.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def crowded(options: ModelOptions) -> str:
    """Return a sentence if the model computes on a CPU whose cores others use, or ""."""
    return crowding(torch.get_num_threads()) if device_of(options) == "cpu" else ""


def bf16_units() -> str:
    """Return the units of this machine's CPU that compute in bf16, such as "AMX and AVX512"."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:  # not Linux
        return ""
    return " and ".join(name for flag, name in _UNITS.items() if flag in flags)


def precision_of(options: ModelOptions) -> tuple[Precision, str]:
    """Return the model's precision here, and if a GPU decides it a sentence that says so, or "".

    Raises UsageError if the model's device is missing.
    """
    if options.precision != "auto":
        return options.precision, ""
    if device_of(options) == "cpu":
        return "fp32", ""
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16", "precision: bf16; the GPU computes in it"
    return "fp32", "precision: fp32; not bf16, because the GPU does not compute in it"


def with_precision(config: RunConfig) -> tuple[RunConfig, str]:
    """Return `config` with the precision that "auto" stands for, and as `precision_of` why."""
    precision, why = precision_of(config.model)
    model = config.model.model_copy(update={"precision": precision})
    return config.model_copy(update={"model": model}), why


def arithmetic(options: ModelOptions) -> str:
    """Return what decides how this machine rounds: the GPU's name, or the CPU's vector units."""
    if device_of(options) == "cuda":
        return str(torch.cuda.get_device_name())
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{capability}, {bf16_units()} for bf16" if bf16_units() else capability
