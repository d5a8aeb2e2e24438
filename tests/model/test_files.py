"""Files of a model that several ranks write, read by the libraries that everybody uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from mugrpo.model.files import saved_tensors, weights_in_memory, write_weights
from mugrpo.model.policy import Policy
from mugrpo.processes.ranks import ALONE


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_other_programs_read_the_files_whatever_the_precision(
    tmp_path: Path, embedded_policy: Policy, dtype: torch.dtype | None
):
    """Three files. One process has all rows, so it writes what three ranks would."""
    model = embedded_policy.model
    weights = weights_in_memory(saved_tensors(model), 3, writes=True, copied=False, dtype=dtype)
    write_weights(model, weights, ALONE, tmp_path)
    files = sorted(tmp_path.glob("model-*-of-00003.safetensors"))
    assert len(files) == 3
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    for file in files:
        with safe_open(file, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}
            assert {index["weight_map"][name] for name in opened.keys()} == {file.name}  # noqa: SIM118
    held = sum(p.numel() for p in model.parameters())
    assert index["metadata"]["total_size"] == held * (2 if dtype else 4)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for name, tensor in model.state_dict().items():
        expected = tensor.to(dtype or tensor.dtype).float()
        assert torch.equal(loaded.state_dict()[name], expected), name


def test_a_rank_that_writes_later_keeps_the_rows_of_the_others(
    tmp_path: Path, embedded_policy: Policy
):
    """Every second tensor is written, then the others: the files hold both."""
    model = embedded_policy.model
    weights = weights_in_memory(saved_tensors(model), 2, writes=True, copied=False)
    for part in range(2):
        names = list(weights.places)[part::2]
        own = type(weights)(
            {name: weights.tensors[name] for name in names},
            weights.places,
            weights.headers,
            weights.index,
        )
        write_weights(model, own, ALONE, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded[name], tensor), name


@pytest.mark.parametrize("files", [1, 2])
def test_weights_may_be_read_by_whoever_may_read_the_config(
    tmp_path: Path, embedded_policy: Policy, files: int
):
    model = embedded_policy.model
    weights = weights_in_memory(saved_tensors(model), files, writes=True, copied=False)
    write_weights(model, weights, ALONE, tmp_path)
    modes = {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    (tmp_path / "plain").touch()
    assert modes == {(tmp_path / "plain").stat().st_mode & 0o777}
