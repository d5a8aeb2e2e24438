"""What places a run's engines and ranks, if its backend is a cluster. Extensions have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from mugrpo.config.base import BackendOptions


class Job(Protocol):
    """Processes of ranks that have been started together."""

    def running(self) -> bool:
        """Return whether any of them runs."""
        ...

    def fault(self) -> str | None:
        """Return what went wrong, once the processes have ended."""

    def end(self, patience: float) -> None:
        """Wait up to `patience` seconds until the processes have ended, then end them."""


class Cluster(Protocol):
    """A cluster that chooses machines. `engines` are the numbers of GPUs of each engine."""

    def require_room(self, ranks: int, engines: Sequence[int]) -> None:
        """Raise UsageError if the cluster can never provide what they reserve at once."""

    def has_room(self, ranks: int, engines: Sequence[int]) -> bool:
        """Return whether the cluster, as it is now, has what ranks and engines reserve at once."""
        ...

    def connect(self) -> None:
        """Connect in this thread, before others use the cluster."""

    def start_engine(self, host: Any) -> Any:
        """Start the process of an `engines.process.Host`, and return its peer."""

    def start_ranks(
        self, words: Sequence[str], logs: Path, count: int, engines: Sequence[int]
    ) -> Job:
        """Start `count` ranks that run `mugrpo WORDS` beside engines. Their logs go to `logs`."""
        ...


def cluster_of(options: BackendOptions) -> Cluster | None:
    """Return what places engines and ranks, or None if this machine runs them."""
    return options.made() if options.factory else None
