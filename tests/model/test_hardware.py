"""The precision that "auto" stands for."""

import ast
from pathlib import Path

import torch

from mugrpo.config.engines import VLLMOptions
from mugrpo.config.run import ModelOptions
from mugrpo.config.training import LoRAOptions
from mugrpo.engines.vllm import vllm_host
from mugrpo.model.hardware import precision_of
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
    """Where "auto" is resolved, for this machine and for a run that has begun. What else read the
    option would take "auto" for one of the two."""
    house = Path(__file__).parents[2] / "src" / "mugrpo"
    readers = {
        file.name
        for file in house.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "precision"
        if ast.unparse(node.value).endswith(("model", "options"))
    }
    assert readers == {"hardware.py", "opening.py"}
