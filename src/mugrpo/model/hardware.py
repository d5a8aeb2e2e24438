"""The device and the precision that models compute with on this machine."""

from typing import Literal

import torch

from mugrpo.config.run import ModelOptions, RunConfig

Precision = Literal["fp32", "bf16"]


def device() -> str:
    """Return where models compute: on the GPU, if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


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
