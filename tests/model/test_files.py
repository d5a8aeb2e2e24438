"""Files of a model that several ranks write, read by the libraries that everybody uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from mugrpo.disk.publishing import checksums
from mugrpo.model.files import saved_tensors, weights_in_memory, write_weights
from mugrpo.model.policy import Policy
from mugrpo.processes.ranks import ALONE
from tests.cases import table
from tests.runs import ENVIRONMENT


@table("dtype", [None, torch.bfloat16])
def test_other_programs_read_the_files_whatever_the_precision(
    tmp_path: Path, embedded_policy: Policy, dtype: torch.dtype | None
):
    """Three files. One process has all rows, so it writes what three ranks would."""
    model, sums = embedded_policy.model, {}
    for own in range(3):
        weights = weights_in_memory(saved_tensors(model), 3, own=own, copied=False, dtype=dtype)
        sums |= write_weights(model, weights, ALONE, tmp_path)
    assert sums == checksums(tmp_path, sorted(sums)) and len(sums) == 3
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


# Four ranks split two layers of five and one rows, one of which none of the last two ranks hold.
SPLIT = """
import sys
from pathlib import Path
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor, Shard
from mugrpo.model.files import weights_in_memory, write_tensors
from mugrpo.processes.ranks import joined

with joined("optimize") as ranks:
    opened = set()
    sys.addaudithook(lambda event, args: event == "open" and opened.add(str(args[0])))
    mesh = init_device_mesh("cpu", (4,))
    shapes = {"a": (5, 3), "b": (1, 2), "c": (8,), "d": (3, 2, 2), "e": (6, 1)}
    whole = {n: torch.randn(s, generator=torch.manual_seed(len(n))) for n, s in shapes.items()}
    tensors = {n: distribute_tensor(t, mesh, [Shard(0)]) for n, t in whole.items()}
    tensors["e"] = whole["e"]  # a buffer, which every rank has
    weights = weights_in_memory(tensors, 4, own=ranks.rank, copied=True)
    mine = {n for n, file in weights.index["weight_map"].items() if file == weights.file}
    assert weights.tensors.keys() == mine, (mine, weights)
    assert all(torch.equal(weights.tensors[n], whole[n]) for n in mine)
    half = weights_in_memory(tensors, 4, own=ranks.rank, copied=False, dtype=torch.bfloat16)
    assert all(torch.equal(half.tensors[n], whole[n].bfloat16()) for n in half.tensors)
    write_tensors(Path(sys.argv[1], weights.file), weights.tensors, cached=True)
    ours = {Path(p).name for p in opened if p.startswith(sys.argv[1])}
    assert ours == {weights.file}, ours
    every = [n for names in ranks.all(sorted(mine)) for n in names]
    assert sorted(every) == sorted(shapes), every
"""


@pytest.mark.long
def test_ranks_exchange_their_rows_and_each_opens_its_own_file_only(tmp_path: Path):
    script = tmp_path / "split.py"
    script.write_text(SPLIT)
    (out := tmp_path / "out").mkdir()
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    words += [str(script), str(out)]
    done = subprocess.run(words, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list(out.iterdir())) == 4


@table("files", [1, 2])
def test_weights_may_be_read_by_whoever_may_read_the_config(
    tmp_path: Path, embedded_policy: Policy, files: int
):
    model = embedded_policy.model
    weights = weights_in_memory(saved_tensors(model), files, own=0, copied=False)
    write_weights(model, weights, ALONE, tmp_path)
    modes = {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    (tmp_path / "plain").touch()
    assert modes == {(tmp_path / "plain").stat().st_mode & 0o777}
