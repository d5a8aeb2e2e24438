"""The precision that "auto" stands for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.model.hardware import arithmetic, bf16_units, with_precision


def config(precision: str, device: str = "auto") -> RunConfig:
    return build_config({"model": {"precision": precision, "device": device}}, "test")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes this machine one with such a CPU, or such a GPU."""

    def become(flags: str, gpu: bool | None = None) -> None:
        monkeypatch.setattr(Path, "read_text", lambda _: f"flags : fpu {flags}\n")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: gpu)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")

    return become


@pytest.mark.parametrize(
    ("flags", "gpu", "precision", "sentence"),
    [
        ("amx_bf16 avx512_bf16", None, "fp32", ""),
        ("avx2", True, "bf16", "precision: bf16; the GPU computes in it"),
        (
            "amx_bf16",
            False,
            "fp32",
            "precision: fp32; not bf16, because the GPU does not compute in it",
        ),
    ],
)
def test_by_default_it_is_bf16_on_a_gpu_that_computes_in_it(
    machine, flags, gpu, precision, sentence
):
    machine(flags, gpu)
    default = build_config({}, "test")
    assert default == config("auto")
    settled, said = with_precision(default)
    assert (settled.model.precision, said) == (precision, sentence)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_precision_that_is_named_stays_and_nothing_is_said(machine, precision):
    machine("avx2")
    assert with_precision(config(precision)) == (config(precision), "")


def test_what_decides_rounding_is_named(machine):
    capability = torch.backends.cpu.get_cpu_capability()
    machine("avx512_bf16")
    assert arithmetic(config("fp32").model) == f"{capability}, AVX512 for bf16"
    machine("avx2")
    assert bf16_units() == "" and arithmetic(config("fp32").model) == capability
    machine("avx2", gpu=True)
    assert arithmetic(config("fp32").model) == "NVIDIA H100"
    assert arithmetic(config("fp32", "cpu").model) == capability
