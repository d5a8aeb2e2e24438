"""The precision that "auto" stands for, and what decides rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mugrpo.config.run import ModelOptions
from mugrpo.model.hardware import arithmetic, precision_of
from tests.cases import table


def become(monkeypatch: pytest.MonkeyPatch, flags: str, gpu: bool | None = None) -> None:
    """Make this machine one with such a CPU, or a GPU that computes in bf16 or not."""
    monkeypatch.setattr(Path, "read_text", lambda _: f"flags : fpu {flags}\n")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")


@table(("gpu", "precision"), [(None, "fp32"), (True, "bf16"), (False, "fp32")])
def test_by_default_it_is_bf16_on_a_gpu_that_computes_in_it(monkeypatch, gpu, precision):
    become(monkeypatch, "amx_bf16 avx512_bf16", gpu)
    assert precision_of(ModelOptions()) == precision
    assert precision_of(ModelOptions(precision="bf16")) == "bf16"


def test_what_decides_rounding_is_named(monkeypatch):
    capability = torch.backends.cpu.get_cpu_capability()
    for flags, gpu, name in (
        ("avx512_bf16", None, f"{capability}, AVX512 for bf16"),
        ("avx2", None, capability),
        ("avx2", True, "NVIDIA H100"),
    ):
        become(monkeypatch, flags, gpu)
        assert arithmetic() == name
