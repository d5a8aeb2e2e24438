"""The backend "ray": what places engines and ranks (`processes.cluster.Cluster`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mugrpo.engines.process import Host, Started
from mugrpo.extensions.ray import RayBackend
from mugrpo.extensions.ray.actor import ActorPeer
from mugrpo.extensions.ray.cluster import connected, has_room, require_room
from mugrpo.extensions.ray.ranks import RayJob
from mugrpo.processes.cluster import Job


class RayCluster:
    """See `processes.cluster.Cluster`."""

    def __init__(self, options: RayBackend) -> None:
        self._options = options
        self.engine_threads = max(1, round(options.engine_cpus))

    def require_room(self, ranks: int, engines: Sequence[int]) -> None:
        require_room(self._options, ranks, engines)

    def has_room(self, ranks: int, engines: Sequence[int]) -> bool:
        return has_room(self._options, ranks, engines)

    def connect(self) -> None:
        connected(self._options)  # a Ray that is started here ends with this thread

    def start_engine(self, host: Host) -> Started:
        return ActorPeer(host, self._options)

    def start_ranks(
        self, words: Sequence[str], logs: Path, count: int, engines: Sequence[int]
    ) -> Job:
        return RayJob(self._options, words, logs, count, engines)
