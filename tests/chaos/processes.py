"""The processes that work for a run, and what they leave behind."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MARK = "MUGRPO_CHAOS"  # environment variable that every process of an attempt inherits
SHARED_MEMORY = Path("/dev/shm")
_TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """A process that was started for a run, and what it does."""

    pid: int
    role: str  # "engine", "rank", "reward worker" or "other"


def marked(mark: str) -> list[Process]:
    """Return the living processes whose environment has the mark, in the order of their ids."""
    wanted, processes = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "environ").read_bytes().split(b"\0")
            if wanted in words:
                processes.append(Process(int(folder.name), _role(folder, words)))
    return sorted(processes)


def _role(folder: Path, environment: list[bytes]) -> str:
    command = (folder / "cmdline").read_bytes()
    if b"optimize" in command and any(word.startswith(b"RANK=") for word in environment):
        return "rank"
    names = {b"engines/worker.py": "engine", b"mugrpo.rewards.worker": "reward worker"}
    return next((role for name, role in names.items() if name in command), "other")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, its descendants, and those that it has waited for."""
    total = 0.0
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        total = sum(map(int, fields[11:15])) / _TICKS
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                total += cpu_seconds(int(child))
    return total


class Gone(NamedTuple):
    """Seconds until the ranks and all processes were gone (inf if they stayed), and those left."""

    ranks: float
    all: float
    left: list[Process]


def wait_until_gone(mark: str, patience: float) -> Gone:
    """Wait until no process has the mark, at most `patience` seconds."""
    began, ranks = time.monotonic(), 0.0
    while left := marked(mark):
        passed = time.monotonic() - began
        if any(process.role == "rank" for process in left):
            ranks = passed
        if passed > patience:
            stays = any(process.role == "rank" for process in left)
            return Gone(float("inf") if stays else ranks, float("inf"), left)
        time.sleep(0.02)
    return Gone(ranks, time.monotonic() - began, [])


def shared_memory() -> frozenset[str]:
    """Return the names in /dev/shm."""
    with suppress(OSError):
        return frozenset(os.listdir(SHARED_MEMORY))
    return frozenset()


def abandoned(names: frozenset[str]) -> list[str]:
    """Return which names in /dev/shm no living process has mapped or open."""
    if not names:
        return []
    held = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for line in (folder / "maps").read_text().splitlines():
                held.add(line.rpartition(f"{SHARED_MEMORY}/")[2])
            for link in (folder / "fd").iterdir():
                with suppress(OSError):
                    held.add(os.readlink(link).removeprefix(f"{SHARED_MEMORY}/"))
    return sorted(name for name in names - held if (SHARED_MEMORY / name).exists())
