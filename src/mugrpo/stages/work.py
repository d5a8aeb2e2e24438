"""The shards that a process works on, while others may work on the same stage."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from mugrpo.disk.records import Part
from mugrpo.processes.claims import Claims, claims_in, forget_claims
from mugrpo.run.opening import OpenRun
from mugrpo.run.stage import Stage

_TICK = 1.0  # seconds between two looks at what others are at work on


class Work:
    """What a part of a stage still lacks, and this process's claims on it."""

    def __init__(self, run: OpenRun, stage: Stage, kind: str, part: Part) -> None:
        self._run, self._stage, self._kind = run, stage, kind
        self._numbers = stage.numbers(part)
        # of a part, what its entries have to tell who made them
        about = {"part": str(part), "host": socket.gethostname()}
        self.about: dict[str, Any] = about if run.folder.apart else {}
        self._claims = Claims(stage.shards(kind).folder, **self.about)

    def rounds(self, idle: Callable[[], None] = lambda: None) -> Iterator[Iterator[int]]:
        """Yield what nobody works on, claimed as it is asked for, until nothing is lacking.

        If nothing is free, call `idle` and wait for those at work.
        """
        told = ""
        while lacking := [n for n in self._numbers if not self._stage.has(self._kind, n)]:
            free = self._claimed(lacking)
            if (first := next(free, None)) is not None:
                yield chain([first], free)
                continue
            if (others := self._others()) and others != told:
                idle()
                self._run.progress.say(others)
                told = others
            self._run.check()
            time.sleep(_TICK)

    def holds(self, shard: int) -> bool:
        """Return whether no other process has taken the shard over."""
        return self._claims.holds(_name(shard))

    def done(self, shard: int) -> None:
        """Give back the claim on a shard, which is published."""
        self._claims.give_back(_name(shard))

    def close(self) -> None:
        """Give back all claims. With the lock and nothing left to make, remove those of others."""
        self._claims.close()
        whole = not self._run.folder.apart and self._numbers == self._stage.numbers()
        if whole and all(self._stage.has(self._kind, shard) for shard in self._numbers):
            forget_claims(self._stage.shards(self._kind).folder)

    def _claimed(self, shards: list[int]) -> Iterator[int]:
        for shard in shards:
            if self._claims.take(_name(shard)):
                if self._stage.has(self._kind, shard):  # published just now
                    self.done(shard)
                else:
                    yield shard

    def _others(self) -> str:
        """Return whom this process waits for."""
        holders = sorted(
            {claim.holder() for claim in claims_in(self._stage.shards(self._kind).folder)}
        )
        return f"waiting for {self._kind} of {', '.join(holders)}" if holders else ""


@contextmanager
def working(run: OpenRun, stage: Stage, kind: str, part: Part) -> Iterator[Work]:
    """Yield the work on a part's "rollouts" or "scores"."""
    work = Work(run, stage, kind, part)
    try:
        yield work
    finally:
        work.close()


def _name(shard: int) -> str:
    return f"shard-{shard:05d}"
