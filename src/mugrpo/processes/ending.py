"""Ending a process that was started in a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress


def end_with_all(process: subprocess.Popen[bytes], patience: float) -> None:
    """Ask it and all that it started to end; kill what has not after `patience` seconds."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience)
        return
    kill_with_all(process)


def kill_with_all(process: subprocess.Popen[bytes]) -> str:
    """Kill it with all that it started; says how it had ended where it was dead already."""
    with suppress(ProcessLookupError):  # before the wait: until then its number is no other's
        os.killpg(process.pid, signal.SIGKILL)
    status = process.wait()
    return f"status {status}" if status >= 0 else signal.Signals(-status).name
