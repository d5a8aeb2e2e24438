"""Blocks that are pinned once, on a stand-in for a GPU that counts what is pinned."""

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from mugrpo.config.run import ModelOptions
from mugrpo.model import host_memory
from mugrpo.model.dtensors import local, moved
from mugrpo.model.files import save_model
from mugrpo.model.host_memory import HostMemory, Rooms
from mugrpo.model.loading import load_model
from mugrpo.model.policy import load_policy
from mugrpo.model.pretrained import model_path
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.trainer import Trainer
from tests.updates import config_of


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each block that was pinned."""
    sizes: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(host_memory, "pin", lambda memory, _: sizes.append(memory.nbytes))
    return sizes


def copied(host: HostMemory, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    rooms = host.rooms(tensor.nbytes for tensor in tensors)
    return [rooms(tensor).copy_(tensor) for tensor in tensors]


EMPTY_LIKE = torch.empty_like
TENSORS = [
    torch.arange(130, dtype=torch.float32).reshape(2, 65),
    torch.tensor(3.0),  # AdamW's count of steps
    torch.ones(0, 4),
    torch.full((3,), 7, dtype=torch.bfloat16),
]
BYTES = (1024 + 512 + 0 + 512) * 65 // 64  # each begins at a multiple of 512; and a little more


def test_copies_share_a_block_without_overlap_and_the_next_copy_has_the_same(pinned):
    host = HostMemory()
    for _ in range(3):
        copies = copied(host, TENSORS)
        for copy, tensor in zip(copies, TENSORS, strict=True):
            assert copy.dtype == tensor.dtype and torch.equal(copy, tensor)
        places = [copy.data_ptr() for copy in copies if len(copy.shape) != 2 or copy.numel()]
        assert [place - places[0] for place in places] == [0, 1024, 1536]
        assert places[0] % 4096 == 0
        del copies, copy
    assert pinned == [BYTES]


def test_what_is_still_used_is_not_overwritten(pinned):
    """By a tensor, a view of one, or an array that is written to disk; then a third copy gets
    ordinary memory, and the block is used again when the last one is gone."""
    host = HostMemory()
    first = memoryview(copied(host, TENSORS)[0].view(-1).view(torch.uint8).numpy())
    second = copied(host, TENSORS)[3][1:]
    assert pinned == [BYTES] * 2
    third = copied(host, [torch.zeros_like(tensor) for tensor in TENSORS])
    assert pinned == [BYTES] * 2
    assert np.frombuffer(first, np.float32).tolist() == list(range(130))
    assert second.tolist() == [7, 7] and not third[0].any()
    del first
    gc.collect()
    again = copied(host, TENSORS)
    assert pinned == [BYTES] * 2 and torch.equal(again[0], TENSORS[0])


def test_a_larger_copy_gets_a_larger_block_in_place_of_the_one_that_is_free(pinned):
    host = HostMemory()
    copied(host, TENSORS[1:])
    copied(host, TENSORS)
    copied(host, TENSORS[1:])
    assert pinned == [1024 * 65 // 64, BYTES]


@pytest.mark.parametrize(
    ("memory", "blocks"), [(8 * BYTES, 2), (8 * BYTES - 1, 1), (4 * BYTES - 1, 0)]
)
def test_pinned_memory_is_at_most_a_quarter_of_the_machines(pinned, monkeypatch, memory, blocks):
    monkeypatch.setattr(host_memory, "host_memory", lambda: memory)
    host = HostMemory()
    copies = [copied(host, TENSORS) for _ in range(3)]
    assert pinned == [BYTES] * blocks
    assert all(torch.equal(copy[0], TENSORS[0]) for copy in copies)


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        ({}, 8),  # of a run that nobody launched
        ({"LOCAL_WORLD_SIZE": "2"}, 2),  # torchrun, Ray
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "16"}, 8),  # it started others too
    ],
)
def test_the_ranks_of_a_machine_share_its_quarter(pinned, monkeypatch, names, ranks):
    monkeypatch.delenv("SLURM_STEP_TASKS_PER_NODE", raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 8)
    for memory, blocks in ((4 * ranks * BYTES - 1, 0), (4 * ranks * BYTES, 1)):
        pinned.clear()
        monkeypatch.setattr(host_memory, "host_memory", lambda memory=memory: memory)
        copied(HostMemory(), TENSORS)
        assert pinned == [BYTES] * blocks


def test_a_model_in_a_block_is_saved_as_it_is(pinned, tmp_path: Path):
    """transformers clones tensors that share a storage, and drops tied ones."""
    model = load_model(model_path(ModelOptions()))
    state = model.state_dict()
    copies = dict(zip(state, copied(HostMemory(), [*state.values()]), strict=True))
    assert len({copy.untyped_storage().data_ptr() for copy in copies.values()}) == len(copies)
    save_model(model, tmp_path, state_dict=copies)
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(state[name], tensor) for name, tensor in saved.items()) and saved


def test_without_a_gpu_nothing_is_pinned(monkeypatch):
    monkeypatch.setattr(host_memory, "pin", lambda *_: pytest.fail("pinned"))
    assert torch.equal(copied(HostMemory(), TENSORS)[0], TENSORS[0])


@pytest.fixture
def trainer(experience: Experience) -> Trainer:
    trainer = Trainer(load_policy(ModelOptions()), config_of())
    trainer.step(experience)
    return trainer


def test_a_trainer_that_sleeps_and_saves_pins_memory_for_two_copies_at_most(
    trainer: Trainer, pinned: list[int], monkeypatch: pytest.MonkeyPatch
):
    """4 bytes a weight, and 8 of moments; a stand-in moves tensors that are on the CPU already."""

    def moving(tensor: torch.Tensor, _: torch.device, rooms: Rooms) -> torch.Tensor:
        return rooms(tensor).copy_(tensor)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("mugrpo.model.policy.moved", moving)
    monkeypatch.setattr("mugrpo.optimize.trainer.moved", moving)
    policy = trainer.policy
    numbers = sum(parameter.numel() for parameter in policy.model.parameters())
    before = {name: tensor.clone() for name, tensor in policy.weights(copied=False).tensors.items()}
    for _ in range(4):
        policy.move(torch.device("cpu"))
        trainer.move_moments(torch.device("cpu"))
        snapshot = trainer.snapshot()
        assert all(torch.equal(before[n], t) for n, t in snapshot.weights.tensors.items())
    weights, moments = sorted(pinned)[:2], sorted(pinned)[2:]
    assert len(moments) == 2
    assert all(4 * numbers <= size < 1.1 * 4 * numbers for size in weights)
    assert all(8 * numbers <= size < 1.1 * 8 * numbers for size in moments)


class Elsewhere:
    """A device to move to that is none of those here, and is the CPU all the same."""

    type = "another"


def test_a_model_that_ranks_split_moves_to_a_block_and_back(pinned, monkeypatch, tmp_path: Path):
    """FSDP's DTensors keep their rows there, and it computes with them. One rank, on gloo."""
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **_: EMPTY_LIKE(tensor))
    dist.init_process_group("gloo", f"file://{tmp_path}/ranks", world_size=1, rank=0)
    try:
        model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), torch.ones(3, 8)
        for module in (*model, model):
            fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        before, host = model(x).detach(), HostMemory()
        there: Any = Elsewhere()
        rooms = host.rooms(local(p.detach()).nbytes for p in model.parameters())
        model._apply(lambda tensor: moved(tensor, there, rooms))
        (block,) = host._blocks
        begin = block.memory.ctypes.data
        places = [local(p.detach()).data_ptr() - begin for p in model.parameters()]
        assert places == [0, 512, 1024, 1536]
        assert torch.equal(model(x), before) and not block.free()
        model._apply(lambda tensor: moved(tensor, there, None))
        gc.collect()
        assert torch.equal(model(x), before) and block.free()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("status", [0, 1])
def test_memory_is_unpinned_with_its_last_tensor_and_a_refusal_is_no_failure(monkeypatch, status):
    calls: list[str] = []

    def register(_: int, size: int, flags: int) -> int:
        calls.append(f"pin {size}")
        return status

    runtime = SimpleNamespace(
        cudaHostRegister=register, cudaHostUnregister=lambda _: calls.append("unpin")
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch, "zeros", Mock(side_effect=RuntimeError("what CUDA refused")))
    host = HostMemory()
    copies = copied(host, TENSORS)
    del host
    gc.collect()
    assert calls == [f"pin {BYTES}"] and torch.equal(copies[0], TENSORS[0])
    del copies
    gc.collect()
    assert calls == [f"pin {BYTES}", *["unpin"] * (status == 0)]
