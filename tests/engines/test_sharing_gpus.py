"""GPUs of engine processes, and the memory that engines on one GPU have, on stand-ins."""

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from mugrpo import engines
from mugrpo.config.load import build_config
from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.engines import continuous, engines_on_a_gpu, require_processes
from mugrpo.model.policy import load_policy

OVERLAP = {"overlap": True, "checkpoint": {"every": 0}, "rollouts": {"shard_rollouts": 8}}


def own(processes: int, **options: object) -> RunConfig:
    return build_config(options | {"engine": {"processes": processes}}, "test")


@pytest.mark.parametrize(
    ("processes", "gpus", "options", "places", "share"),
    [
        (2, 1, {}, "00", 2),
        (3, 2, {}, "010", 2),
        (2, 4, {}, "01", 1),
        (3, 3, OVERLAP, "121", 2),  # the first one is the ranks'
        (1, 0, OVERLAP, "", 1),
    ],
)
def test_engines_on_a_gpu_know_how_many_they_are(
    monkeypatch, processes, gpus, options, places, share
):
    monkeypatch.setattr(engines, "visible_gpus", lambda: [*map(str, range(gpus))])
    config = own(processes, **options)
    given = [engines._own_gpus(config, number) for number in range(processes)]
    assert given == ([{"CUDA_VISIBLE_DEVICES": place} for place in places] or [{}] * processes)
    assert engines_on_a_gpu(config) == share
    host = engines._host(load_policy(ModelOptions()).vocabulary, config, Path("log"))
    assert host.setup["share"] == share
    require_processes(config)


def test_own_engines_beside_updates_need_a_gpu_that_no_rank_has(monkeypatch):
    monkeypatch.setattr(engines, "visible_gpus", lambda: ["0"])
    with pytest.raises(UsageError, match="updates fill 1 GPUs and the engines need others"):
        require_processes(own(1, **OVERLAP))


@pytest.mark.parametrize(
    ("free", "share", "counted"),
    [
        (60, 1, 62),  # and 2 that torch keeps for itself
        (60, 2, 30),  # half of 80 less the 10 that the engine has
        (20, 2, 22),  # the others have more than their part
    ],
)
def test_an_engine_has_its_part_of_a_gpus_memory(monkeypatch, free, share, counted):
    policy, cuda = load_policy(ModelOptions()), Mock()
    cuda.mem_get_info.return_value = free, 80
    cuda.memory_reserved.return_value, cuda.memory_allocated.return_value = 12, 10
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(continuous, "slots_that_fit", lambda free, *_: free)
    assert continuous._fitting(policy, 100, share) == counted
