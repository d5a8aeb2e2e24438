"""Tensors that ranks split. A mesh of one rank, whose messages go nowhere, is enough."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from mugrpo.model.files import like, moved


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_rows_stay_where_the_weights_are(mesh: DeviceMesh, monkeypatch):
    """On a mesh of other devices, `DTensor.from_local` would move them there."""
    weight = distribute_tensor(torch.zeros(3, 2), mesh, [Shard(0)])
    monkeypatch.setattr(DeviceMesh, "device_type", "meta")
    rows = torch.arange(6.0).view(3, 2)
    made = like(rows, weight)
    assert made.placements == weight.placements
    assert torch.equal(made.to_local(), rows)


def test_a_split_tensor_moves_with_its_placements_and_stays_if_it_is_there(mesh: DeviceMesh):
    weight = distribute_tensor(torch.ones(3, 2), mesh, [Shard(0)])
    assert moved(weight, torch.device("cpu")) is weight
    there = moved(weight, torch.device("meta"))
    assert there.to_local().device.type == "meta" and there.placements == weight.placements
