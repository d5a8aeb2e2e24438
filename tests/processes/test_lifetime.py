"""Ranks end with what started them and with the run that drives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch

from mugrpo.disk.errors import UsageError
from mugrpo.processes.lifetime import DRIVER, began, driver_name, let_segments_grow
from mugrpo.processes.ranks import joined
from tests.waiting import alive, soon

RANK = """
import time
from mugrpo.processes.lifetime import end_with_driver
end_with_driver()
print("ready", flush=True)
time.sleep(600)
"""
PARENT = f"""
import subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", {RANK!r}], stdout=subprocess.PIPE)
rank.stdout.readline()
print(rank.pid, flush=True)
rank.wait()
"""


@pytest.mark.promise("no orphans")
def test_a_stopped_rank_ends_with_the_process_that_started_it():
    """The run that drives it goes on."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        env={**os.environ, DRIVER: driver_name()},
    )
    assert parent.stdout is not None
    rank = int(parent.stdout.readline())
    os.kill(rank, signal.SIGSTOP)
    parent.kill()
    parent.communicate()
    assert soon(lambda: not alive(rank), 10)


def test_a_rank_that_is_still_importing_ends_within_two_seconds():
    """It imports as a rank does, and its driver is killed while it does so."""
    driver = subprocess.Popen(["sleep", "600"])
    environment = {**os.environ, DRIVER: f"{driver.pid} {began(driver.pid)}"}
    imports = RANK.replace("time.sleep(600)", "import torch, transformers\ntime.sleep(600)")
    rank = subprocess.Popen(
        [sys.executable, "-c", imports], stdout=subprocess.PIPE, env=environment
    )
    assert rank.stdout is not None and rank.stdout.readline() == b"ready\n"
    driver.kill()
    driver.wait()
    rank.wait(2)
    rank.stdout.close()


def test_a_rank_ends_with_its_driver():
    driver = subprocess.Popen(["sleep", "600"])
    environment = {**os.environ, DRIVER: f"{driver.pid} {began(driver.pid)}"}
    rank = subprocess.Popen([sys.executable, "-c", RANK], stdout=subprocess.PIPE, env=environment)
    assert rank.stdout is not None and rank.stdout.readline() == b"ready\n"
    assert alive(rank.pid)
    driver.kill()
    driver.wait()
    rank.communicate(timeout=60)
    assert rank.returncode == 1


@pytest.mark.parametrize(
    ("given", "grow"),
    [
        ({DRIVER: "1 1"}, True),
        ({}, False),  # it may start an engine, which would inherit it
        ({DRIVER: "1 1", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}, False),
    ],
)
def test_only_ranks_let_their_segments_grow_and_the_users_setting_wins(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], grow: bool
):
    for name in (DRIVER, "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "")  # so that it is removed after the test
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    let_segments_grow()
    assert os.environ.get("PYTORCH_ALLOC_CONF") == ("expandable_segments:True" if grow else None)


def test_a_rank_without_a_gpu_says_so_before_it_meets_the_others(monkeypatch: pytest.MonkeyPatch):
    """The third of four ranks, on a stand-in for a machine with two GPUs."""
    place = {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "2", DRIVER: "1 0"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match=r"has 2 GPUs.*--distributed.processes 2"), joined():
        pass
