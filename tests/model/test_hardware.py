"""The precision that "auto" stands for."""

from __future__ import annotations

import torch

from mugrpo.config.run import ModelOptions
from mugrpo.model.hardware import precision_of
from tests.cases import table


@table(("gpu", "precision"), [(None, "fp32"), (True, "bf16"), (False, "fp32")])
def test_by_default_it_is_bf16_on_a_gpu_that_computes_in_it(monkeypatch, gpu, precision):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: gpu)
    assert precision_of(ModelOptions()) == precision
    assert precision_of(ModelOptions(precision="bf16")) == "bf16"
