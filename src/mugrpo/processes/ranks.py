"""Ranks: the processes of an update, each with a GPU or a share of the CPU's cores."""

from __future__ import annotations

import datetime
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from mugrpo.disk.errors import UsageError
from mugrpo.processes.driver import DRIVER
from mugrpo.processes.logs import append_only
from mugrpo.processes.messages import visible

T = TypeVar("T")

TIMEOUT = datetime.timedelta(minutes=30)  # another rank may be loading, or writing a checkpoint
_SENTENCE = re.compile(r"^mugrpo: (.*?)(?:\. Nothing published is lost.*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Ranks:
    """This process's place among the ranks of an update; by default it is alone."""

    rank: int = 0
    size: int = 1
    driven: bool = False  # works for a run, which holds the lock, generates, scores, evaluates
    by_hand: bool = False  # started by the user, on another machine than the run that it works for
    local: int = 0  # its number among the ranks of its machine

    @property
    def first(self) -> bool:
        """Whether this is the first rank, the one that writes."""
        return self.rank == 0

    @property
    def shown(self) -> bool:
        """Whether its progress is shown. The first rank of a run may be on another machine."""
        return self.local == 0 if self.driven else self.first

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

    def turns(self, pieces: int) -> list[tuple[int, bool]]:
        """Return the numbers of the pieces of work that this rank does, and whether each counts.

        Every `size` pieces in order are a round, in which each rank does one, because ranks gather
        weights together. In an incomplete last round the other ranks repeat the last piece, which
        should be the cheapest. Repeats do not count.
        """
        own = range(self.rank, math.ceil(pieces / self.size) * self.size, self.size)
        return [(min(piece, pieces - 1), piece < pieces) for piece in own]


ALONE = Ranks()


@contextmanager
def joined(command: str, *, follow: bool = False) -> Iterator[Ranks]:
    """Join the ranks that torchrun started, and yield this process's place among them.

    Without torchrun the process is alone. If it is to `follow` a run that has not started it, it
    is another machine's. A rank that waits longer than TIMEOUT for another one ends with an error.
    Raises UsageError if `command` cannot run in ranks.
    """
    started = DRIVER in os.environ
    place = {"driven": started or follow, "by_hand": follow and not started}
    if started:
        append_only(1, 2)  # torchrun's logs of its ranks do not
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks(**place)
        return
    if command != "optimize":
        raise UsageError(f"torchrun is for `mugrpo optimize`; run `mugrpo {command}` without it")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT)
    ranks = Ranks(dist.get_rank(), size, **place, local=int(os.environ["LOCAL_RANK"]))
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
    return visible(str(sentences[-1])) if sentences else None
