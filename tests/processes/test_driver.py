"""Ranks end with what started them and with the run that drives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from mugrpo.processes.driver import DRIVER, began, driver_name
from tests.waiting import alive, soon

RANK = """
import time
from mugrpo.processes.driver import end_with_driver
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
