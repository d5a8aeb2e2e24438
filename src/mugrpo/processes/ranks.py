"""The processes that make an update together, one to a GPU or a share of the CPU's cores."""

from __future__ import annotations

import datetime
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from mugrpo.disk.errors import UsageError

T = TypeVar("T")

TIMEOUT = datetime.timedelta(minutes=30)  # a rank may be loading, or writing a checkpoint
_SENTENCE = re.compile(r"^mugrpo: (.*?)(?:\. Nothing published is lost.*)?$", re.MULTILINE)
DRIVER = "MUGRPO_DRIVER"  # the process that started the ranks, and holds the run


@dataclass(frozen=True)
class Ranks:
    """This process among those of the update; alone where nothing else is said."""

    rank: int = 0
    size: int = 1
    driven: bool = False  # started by a run, which holds the lock, generates, scores, evaluates

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether this process is the run itself, no rank that a run has started."""
        return self.size == 1 and not self.driven

    def all(self, value: T) -> list[T]:
        """Everybody's value, by rank. Values travel pickled, among this run's own processes."""
        if self.size == 1:
            return [value]
        found: list[T | None] = [None] * self.size
        dist.all_gather_object(found, value)
        return found  # type: ignore[return-value]

    def from_first(self, value: T | None) -> T:
        """The first's value, which the others need not have. It travels pickled."""
        found = [value]
        if self.size > 1:
            dist.broadcast_object_list(found, src=0)
        return found[0]  # type: ignore[return-value]

    def any(self, condition: bool) -> bool:
        return any(self.all(condition))

    def wait(self) -> None:
        """Until everybody is here."""
        self.all(None)

    def turns(self, costs: Sequence[float]) -> list[tuple[int, bool]]:
        """The pieces of work that this rank does, and whether each counts.

        The dearest goes first to the rank that is least busy. All ranks have as many, because they
        gather weights together: one that has fewer does the cheapest again, which does not count.
        """
        taken: list[list[int]] = [[] for _ in range(self.size)]
        busy = [0.0] * self.size
        for piece in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
            rank = min(range(self.size), key=lambda r: (busy[r], r))
            taken[rank].append(piece)
            busy[rank] += costs[piece]
        cheapest = min(range(len(costs)), key=costs.__getitem__, default=0)
        idle = max(map(len, taken)) - len(taken[self.rank])
        return [*((piece, True) for piece in sorted(taken[self.rank])), *[(cheapest, False)] * idle]


ALONE = Ranks()


@contextmanager
def joined(command: str) -> Iterator[Ranks]:
    """The ranks that torchrun started, this process among them; alone without torchrun.

    A rank that waits for another one longer than TIMEOUT ends with an error. Raises UsageError for
    a command that is not for ranks.
    """
    if driver := os.environ.get(DRIVER):
        threading.Thread(target=_end_with, args=[driver], daemon=True).start()
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks(driven=driver is not None)
        return
    if command != "optimize":
        raise UsageError(f"torchrun is for `mugrpo optimize`; run `mugrpo {command}` without it")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT)
    ranks = Ranks(dist.get_rank(), size, driven=driver is not None)
    yield ranks
    ranks.wait()  # not where a rank failed: then the others do not come
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads abort some processes that end in the ordinary way


def driver_name() -> str:
    """This process's number and when it began: nobody else's, ever."""
    return f"{os.getpid()} {_began(os.getpid())}"


def said_by_ranks(logs: Iterable[Path]) -> str | None:
    """What a rank that ended in an ordinary way has said of it."""
    said = [
        s
        for log in logs
        if log.is_file()
        for s in _SENTENCE.findall(log.read_text(errors="replace"))
    ]
    return str(said[-1]) if said else None


def _end_with(driver: str) -> None:
    """End this process when the run that started it is gone, however it went."""
    pid, began = driver.split(" ")
    while _began(int(pid)) == began:
        time.sleep(0.1)
    os._exit(1)


def _began(pid: int) -> str:
    """When a process began, in the kernel's ticks; "" once it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]
