"""Files of a model that several ranks write, read by the libraries that everybody uses."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers import AutoModelForCausalLM

from mugrpo.disk.publishing import sha256_of
from mugrpo.model.files import saved_tensors, weights_in_memory, write_tensors, write_weights
from mugrpo.model.host_memory import HostMemory
from mugrpo.processes.ranks import ALONE, Ranks
from tests.cases import table
from tests.ranked import started


@table("dtype", [None, torch.bfloat16])
def test_other_programs_read_the_files_whatever_the_precision(tmp_path, embedded_policy, dtype):
    """Three files. One process has all rows, so it writes what three ranks would."""
    model, sums = embedded_policy.model, {}
    for own in range(3):
        weights = weights_in_memory(saved_tensors(model), 3, own=own, host=None, dtype=dtype)
        sums |= write_weights(model, weights, ALONE, tmp_path)
    assert sums == {name: sha256_of(tmp_path / name) for name in sums} and len(sums) == 3
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


def _split(ranks: Ranks, out: Path) -> None:
    """Four ranks split layers of five and one rows, one of which none of the last two hold."""
    opened = set[str]()
    sys.addaudithook(lambda event, args: opened.add(str(args[0])) if event == "open" else None)
    mesh = init_device_mesh("cpu", (4,))
    shapes = {"a": (5, 3), "b": (1, 2), "c": (8,), "d": (3, 2, 2), "e": (6, 1)}
    whole = {n: torch.randn(s, generator=torch.manual_seed(len(n))) for n, s in shapes.items()}
    tensors: dict[str, torch.Tensor] = {
        n: distribute_tensor(t, mesh, [Shard(0)]) for n, t in whole.items()
    }
    tensors["e"] = whole["e"]  # a buffer, which every rank has
    weights = weights_in_memory(tensors, 4, own=ranks.rank, host=HostMemory())
    mine = {n for n, file in weights.index["weight_map"].items() if file == weights.file}
    assert weights.tensors.keys() == mine, (mine, weights)
    assert all(torch.equal(weights.tensors[n], whole[n]) for n in mine)
    half = weights_in_memory(tensors, 4, own=ranks.rank, host=None, dtype=torch.bfloat16)
    assert all(torch.equal(half.tensors[n], whole[n].bfloat16()) for n in half.tensors)
    write_tensors(out / weights.file, weights.tensors, cached=True)
    assert {Path(p).name for p in opened if p.startswith(str(out))} == {weights.file}
    every = [n for names in ranks.all(sorted(mine)) for n in names]
    assert sorted(every) == sorted(shapes), every


@pytest.mark.long
def test_ranks_exchange_their_rows_and_each_opens_its_own_file_only(tmp_path: Path):
    started(4, _split, tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


@table("files", [1, 2])
def test_weights_may_be_read_by_whoever_may_read_the_config(tmp_path, embedded_policy, files):
    model = embedded_policy.model
    weights = weights_in_memory(saved_tensors(model), files, own=0, host=None)
    write_weights(model, weights, ALONE, tmp_path)
    modes = {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    (tmp_path / "plain").touch()
    assert modes == {(tmp_path / "plain").stat().st_mode & 0o777}
