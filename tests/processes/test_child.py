"""What a warden does while its worker lives. `tests/rewards/test_pool.py` has what it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.waiting import soon

SILENT = """
import os, sys, time
from mugrpo.processes.child import guard
guard(1000)
null = os.open(os.devnull, os.O_WRONLY)
os.dup2(null, 1)
os.dup2(null, 2)
os.close(os.open(sys.argv[1], os.O_CREAT))
time.sleep(600)
"""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_worker_that_closes_its_output_costs_its_warden_nothing(tmp_path: Path):
    """It looks at the memory ten times a second, as before, and ends with the lifeline."""
    read, write = os.pipe()
    command = [sys.executable, "-c", SILENT, str(tmp_path / "silent"), str(read)]
    warden = subprocess.Popen(command, pass_fds=[read])
    try:
        assert soon((tmp_path / "silent").exists)
        before = cpu_seconds(warden.pid)
        time.sleep(1.0)
        assert cpu_seconds(warden.pid) - before < 0.1
    finally:
        os.close(write)
    assert warden.wait(10) == -signal.SIGKILL
    os.close(read)
