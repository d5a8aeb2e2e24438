"""Ranks: the processes of an update, each with a GPU or a share of the CPU's cores."""

from __future__ import annotations

import datetime
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from mugrpo.disk.errors import UsageError
from mugrpo.processes.driver import DRIVER
from mugrpo.processes.logs import append_only

T = TypeVar("T")

TIMEOUT = datetime.timedelta(minutes=30)  # another rank may be loading, or writing a checkpoint
_SENTENCE = re.compile(r"^mugrpo: (.*?)(?:\. Nothing published is lost.*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Ranks:
    """This process's place among the ranks of an update; by default it is alone."""

    rank: int = 0
    size: int = 1
    driven: bool = False  # started by a run, which holds the lock, generates, scores, evaluates

    @property
    def first(self) -> bool:
        """Whether this is the first rank, the one that writes."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether this process is the run itself, rather than a rank that a run started."""
        return self.size == 1 and not self.driven

    def all(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order.

        They are pickled, which is safe between a run's own processes.
        """
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def from_first(self, value: T | None) -> T:
        """Return the first rank's value, which is pickled. Other ranks may pass None."""
        box = [value]
        if self.size > 1:
            dist.broadcast_object_list(box, src=0)
        return box[0]  # type: ignore[return-value]

    def any(self, condition: bool) -> bool:
        """Return whether `condition` holds on any rank."""
        return any(self.all(condition))

    def wait(self) -> None:
        """Wait until all ranks have called this."""
        self.all(None)

    def turns(self, costs: Sequence[float]) -> list[tuple[int, bool]]:
        """Return the pieces of work that this rank does, and whether each counts.

        `costs` has the cost of each piece. The most expensive piece left goes to the least busy
        rank. All ranks must do the same number of pieces, because they gather weights together. A
        rank with fewer repeats the cheapest piece, and the repeats do not count.
        """
        parts: list[list[int]] = [[] for _ in range(self.size)]
        busy = [0.0] * self.size
        for piece in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
            rank = min(range(self.size), key=lambda r: (busy[r], r))
            parts[rank].append(piece)
            busy[rank] += costs[piece]
        cheapest = min(range(len(costs)), key=costs.__getitem__, default=0)
        idle = max(map(len, parts)) - len(parts[self.rank])
        return [*((piece, True) for piece in sorted(parts[self.rank])), *[(cheapest, False)] * idle]


ALONE = Ranks()


@contextmanager
def joined(command: str) -> Iterator[Ranks]:
    """Join the ranks that torchrun started, and yield this process's place among them.

    Without torchrun the process is alone. A rank that waits longer than TIMEOUT for another one
    ends with an error. Raises UsageError if `command` cannot run in ranks.
    """
    driver = os.environ.get(DRIVER)
    if driver is not None:
        append_only(1, 2)  # torchrun's logs of its ranks do not
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
    ranks.wait()  # skipped if this rank failed: the others may never come
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads abort some processes that exit normally


def said_by_ranks(logs: Iterable[Path]) -> str | None:
    """Return the last error message in the ranks' logs, or None if no rank wrote one."""
    sentences = [
        s
        for log in logs
        if log.is_file()
        for s in _SENTENCE.findall(log.read_text(errors="replace"))
    ]
    return str(sentences[-1]) if sentences else None
