"""Ranks on two machines, which are both this one: torchrun's agents meet at an address."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mugrpo.config.run import RunConfig
from mugrpo.stages.ranks import idle_while_generating
from tests.runs import ENVIRONMENT, differences, finished, read_metrics, start_train
from tests.waiting import alive, soon, until

# Three stages, and an evaluation within the second one.
STAGES = (
    *("--schedule.stages", "3", "--schedule.batches_per_stage", "4", "--checkpoint.every", "1"),
    *("--evaluation.every", "6", "--engine.processes", "1", "--reference.name", "kl"),
    *("--checkpoint.beside_training", "true"),
)


@contextmanager
def other_machine(run_dir: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start what the user starts on the second machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    command += ["--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", address]
    command += ["-m", "mugrpo", "optimize", str(run_dir), "--follow"]
    with open(run_dir.parent / "other.log", "wb") as log:
        agent = subprocess.Popen(command, env={**os.environ, **ENVIRONMENT}, stdout=log, stderr=log)
    try:
        yield agent
    finally:
        agent.kill()
        agent.wait()


def an_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def made(run_dir: Path) -> int:
    """Return the number of updates that the metrics know."""
    return max((e["update"] for e in read_metrics(run_dir) if e["kind"] == "update"), default=0)


def test_a_run_says_how_many_gpus_idle_while_its_first_machine_generates():
    distributed = {"machines": 8, "processes": 8, "address": "first:29500"}
    server = {"name": "vllm_server", "urls": ["http://first:8000"]}
    said = idle_while_generating(RunConfig.model_validate({"distributed": distributed}))
    assert said and "this machine only: 56 of the 64 GPUs" in said
    for fine in (
        {"distributed": distributed, "engine": server},
        {"distributed": {"processes": 8}, "engine": {"processes": 1}},
    ):
        assert idle_while_generating(RunConfig.model_validate(fine)) is None


@pytest.mark.long
def test_ranks_of_two_machines_stay_for_the_run_and_give_the_bits_of_one(tmp_path: Path):
    run_dir, one, address = tmp_path / "run", tmp_path / "one", an_address()
    machines = ("--distributed.machines", "2", "--distributed.address", address)
    started = start_train(run_dir, *STAGES, *machines)
    with other_machine(run_dir, address) as agent:
        until(lambda: made(run_dir) >= 2, 600)
        early = children(agent.pid)
        until(lambda: made(run_dir) >= 9, 600)
        assert len(early) == 1 and children(agent.pid) == early
        ended = started.end(600)
        assert (ended.status, ended.err) == (0, ""), ended
        assert agent.wait(60) == 0
    finished(one, *STAGES, "--distributed.processes", "2")
    assert not differences(run_dir, one, 12)


@pytest.mark.long
def test_the_other_machine_ends_with_the_run(tmp_path: Path):
    run_dir, address = tmp_path / "run", an_address()
    machines = ("--distributed.machines", "2", "--distributed.address", address)
    started = start_train(run_dir, *STAGES, *machines)
    until(lambda: (run_dir / "ranks" / "order.json").exists(), 60)  # its agent meets others
    with other_machine(run_dir, address) as agent:
        until(lambda: made(run_dir) >= 5, 600)
        ranks = children(agent.pid)
        os.kill(started.pid, signal.SIGKILL)
        started.end()
        assert agent.wait(90) != 0
        assert len(ranks) == 1 and soon(lambda: not any(map(alive, ranks)), 10)
