"""Ranks: the processes of an update, each with a GPU or a share of the CPU's cores."""

import datetime
import math
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from mugrpo.disk.errors import UsageError
from mugrpo.processes.launcher import launched_ranks
from mugrpo.processes.lifetime import DRIVER, follows
from mugrpo.processes.messages import visible

T = TypeVar("T")

STORE = "MUGRPO_STORE"  # environment variable: the file in which the ranks of one machine meet
TIMEOUT = datetime.timedelta(minutes=30)  # another rank may be loading, or writing a checkpoint
_SENTENCE = re.compile(r"^mugrpo: (.*?)(?:\. Nothing published is lost.*)?$", re.MULTILINE)


class Job(Protocol):
    """Processes of ranks that have been started together."""

    def running(self) -> bool:
        """Return whether any of them runs."""
        ...

    def fault(self) -> str | None:
        """Return what went wrong, once the processes have ended."""

    def end(self, patience: float) -> None:
        """Wait up to `patience` seconds until the processes have ended, then end them."""


@dataclass(frozen=True)
class Ranks:
    """This process's place among the ranks of an update; by default it is alone."""

    rank: int = 0
    size: int = 1
    follows: bool = False  # works for a run, which holds the lock, generates, scores, evaluates

    @property
    def first(self) -> bool:
        """Whether this is the first rank, the one that writes."""
        return self.rank == 0

    def all(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order. They must be picklable."""
        values: list[Any] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values

    def from_first(self, value: T | None) -> T:
        """Return the first rank's value, see `all`. Other ranks may pass None."""
        values: list[Any] = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, src=0)
        received: T = values[0]
        return received

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
def joined() -> Iterator[Ranks]:
    """Join the ranks that a run or a launcher has started, and yield this one's place among them.

    Other processes are alone. A rank that waits longer than TIMEOUT for another one ends with an
    error. Raises UsageError if there is no GPU left for it.
    """
    if not follows():
        yield Ranks()
        return
    place = (DRIVER not in os.environ and launched_ranks()) or os.environ
    size = int(place.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks(follows=True)
        return
    backend = "gloo"
    if torch.cuda.is_available():
        local, gpus = int(place["LOCAL_RANK"]), torch.cuda.device_count()
        if local >= gpus:
            raise UsageError(
                f"this machine has {gpus} GPUs, and each rank needs one; set "
                f"--distributed.processes {gpus}"
            )
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    rank = int(place["RANK"])
    os.environ |= place  # torch reads the address of the first one there
    store = f"file://{os.environ[STORE]}" if STORE in os.environ else "env://"
    dist.init_process_group(backend, store, TIMEOUT, world_size=size, rank=rank)
    ranks = Ranks(rank, size, follows=True)
    yield ranks
    ranks.wait()  # skipped if this rank failed: the others may never come
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads abort some processes that exit normally


def within_a_machine(folder: str) -> dict[str, str]:
    """Return the variables with which ranks open no port that other machines can reach.

    They meet in a file in `folder`, which is empty, and which only this user may enter.
    """
    names = {STORE: f"{folder}/ranks"}
    for _, interface in socket.if_nameindex():
        if interface in ("lo", "lo0"):
            names["GLOO_SOCKET_IFNAME"] = interface
    return names


def said_by_ranks(logs: Iterable[Path]) -> str | None:
    """Return the last error message in the ranks' logs, or None if no rank wrote one."""
    texts = [log.read_text(errors="replace") for log in logs if log.is_file()]
    sentences = [sentence for text in texts for sentence in _SENTENCE.findall(text)]
    return visible(sentences[-1]) if sentences else None


def show_log(log: Path, shown: int) -> int:
    """Print the whole lines of a rank's log after byte `shown`. Return where they end."""
    if not log.is_file():
        return shown
    with open(log, "rb") as file:
        file.seek(shown)
        fresh = file.read()
    lines = fresh[: fresh.rfind(b"\n") + 1]
    sys.stdout.write(visible(lines.decode(errors="replace")))
    sys.stdout.flush()
    return shown + len(lines)
