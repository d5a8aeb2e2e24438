"""The precision that "auto" stands for."""

import ast
import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from mugrpo.config.engines import VLLMOptions
from mugrpo.config.run import ModelOptions
from mugrpo.config.training import LoRAOptions
from mugrpo.engines.vllm import vllm_host
from mugrpo.model import hardware
from mugrpo.model.hardware import precision_of, unusable_gpu
from mugrpo.model.vocabulary import Vocabulary
from tests.cases import table


@table(("gpu", "half"), [(None, False), (True, True), (False, False)])
def test_by_default_it_is_bf16_on_a_gpu_that_computes_in_it_and_in_vllm_too(monkeypatch, gpu, half):
    """Also if vLLM's process is given the options as they were written, with "auto"."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: gpu)
    assert precision_of(ModelOptions()) == ("bf16" if half else "fp32")
    assert precision_of(ModelOptions(precision="bf16")) == "bf16"
    written = Vocabulary(8, [1]), ModelOptions(), LoRAOptions(), VLLMOptions(python="python")
    dtype = vllm_host(*written, Path("log")).setup["arguments"]["dtype"]
    assert dtype == ("bfloat16" if half else "float32")


def test_nothing_reads_the_option_past_what_resolves_it():
    """Where "auto" is resolved, for this machine and for a run that has begun, and where `submit`
    asks whether it is "auto". What else read the option would take that for a precision."""
    house = Path(__file__).parents[2] / "src" / "mugrpo"
    readers = {
        file.name
        for file in house.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "precision"
        if ast.unparse(node.value).endswith(("model", "options"))
    }
    assert readers == {"hardware.py", "deciding.py", "command.py"}


DENIED, BROKEN, ABSENT = (OSError(number, "") for number in (errno.EPERM, errno.EIO, errno.ENXIO))
OLD = (
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU "
    "driver by downloading and installing a new version"
)


@pytest.mark.parametrize(
    ("files", "opens", "visible", "unseen"),
    [
        (["nvidia0", "nvidiactl"], None, None, True),
        (["nvidia0"], BROKEN, None, True),
        (["nvidia0"], DENIED, None, False),  # a job of Slurm without a GPU
        (["nvidia0"], ABSENT, None, False),
        (["nvidiactl", "nvidia-uvm"], None, None, False),  # a container without one
        ([], None, None, False),
        (["nvidia0"], None, "", False),  # hidden on purpose
        (["nvidia0"], None, "-1", False),
        (["nvidia0"], None, "NoDevFiles", False),
        (["nvidia0"], None, "7", True),
        (["nvidia0"], None, "GPU-1b2c", True),
    ],
)
def test_a_gpu_that_torch_does_not_see_is_found_by_its_device_file(
    tmp_path, monkeypatch, files, opens, visible, unseen
):
    plain = os.open

    def opened(path: Any, *rest: Any) -> int:
        if opens and "nvidia" in str(path):
            raise opens
        return plain(path, *rest)

    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(hardware, "_DEVICES", lambda: tmp_path.glob("nvidia[0-9]*"))
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", Mock(side_effect=RuntimeError(OLD)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = unusable_gpu()
    assert (found is not None) == unseen
    if found:
        named = f" (CUDA_VISIBLE_DEVICES={visible})" if visible else ""
        assert found[0] == (
            f"torch {torch.__version__} cannot use this machine's GPU: The NVIDIA driver on your "
            f"system is too old (found version 12020){named}"
        )
        assert found[1].endswith("or set CUDA_VISIBLE_DEVICES= to compute on the CPU")
        monkeypatch.setattr(torch.version, "cuda", None)
        said = unusable_gpu()
        assert said and said[0].endswith(f"GPU: it is built without CUDA{named}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90a", "compute_120"])
    for capability, fault in (((7, 5), ""), ((12, 0), ""), ((7, 0), "compute capability 7.0")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda now=capability: now)
        found = unusable_gpu()
        assert found[0].endswith(f"no kernels for the {fault}") if found else not fault
