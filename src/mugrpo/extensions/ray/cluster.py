"""The backend "ray": what places engines and ranks. `engines` are the GPUs of each engine."""

import logging
import os
import secrets
import signal
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.engines.process import EngineHost
from mugrpo.extensions.ray import RayBackend
from mugrpo.extensions.ray.actor import ActorPeer
from mugrpo.extensions.ray.ranks import RayJob

_OBJECT_STORE = 1 << 28  # bytes, for a Ray started here; it carries only messages


class RayCluster:
    """A cluster that chooses the machines of engines and ranks."""

    def __init__(self, options: RayBackend) -> None:
        address = os.environ.get("RAY_ADDRESS")
        self._here = address is None
        self._address = address or "local"

    def require_room(self, ranks: int, engines: Sequence[int]) -> None:
        """Raise UsageError if the cluster can never provide what they reserve at once."""
        connected(self._address)  # in this thread, with which a Ray that is started here ends
        # A cluster may grow, so on a cluster Ray waits until there is room.
        if self._here and not self.has_room(ranks, engines):
            cpus, gpus = self._reserved(ranks, engines)
            raise UsageError(
                f"engines and updates need {cpus} CPUs and {gpus} GPUs at once, which this "
                "machine's Ray does not have; lower --engine.processes or "
                "--distributed.processes, or name a cluster in RAY_ADDRESS"
            )

    def has_room(self, ranks: int, engines: Sequence[int]) -> bool:
        """Return whether the cluster, as it is now, has what they reserve at once."""
        cpus, gpus = self._reserved(ranks, engines)
        resources = connected(self._address).cluster_resources()
        return bool(cpus <= resources.get("CPU", 0) and gpus <= resources.get("GPU", 0))

    def start_engine(self, host: EngineHost) -> ActorPeer:
        """Start an engine's process."""
        return ActorPeer(
            connected(self._address), host, host.gpus if has_gpus(self._address) else 0
        )

    def start_ranks(
        self, words: Sequence[str], logs: Path, count: int, engines: Sequence[int]
    ) -> RayJob:
        """Start `count` ranks that run `mugrpo WORDS` beside engines. Their logs go to `logs`."""
        self.require_room(count, engines)
        connected(self._address)
        return RayJob(words, logs, count, with_gpus=has_gpus(self._address))

    def _reserved(self, ranks: int, engines: Sequence[int]) -> tuple[int, int]:
        """Return the CPUs and GPUs that `ranks` and engines reserve."""
        return ranks + len(engines), ranks + sum(engines) if has_gpus(self._address) else 0


@cache
def has_gpus(address: str) -> bool:
    """Return whether the cluster has GPUs.

    The first answer is kept, so that a run keeps its devices even if the cluster changes.
    """
    return bool(connected(address).cluster_resources().get("GPU", 0))


@cache
def connected(address: str) -> Any:
    """Return the module ray, connected to the cluster.

    A Ray that is started here ends with the thread that first calls this. Raises UsageError if Ray
    is not installed or no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    local_options: dict[str, Any] = {}
    if address == "local":
        # Whoever reaches a port of Ray's can run code: only this machine does, and needs a token.
        local_options = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # as there, listen on loopback
        if "RAY_AUTH_MODE" not in os.environ:
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # Ray has its workers import from the working directory, which may be anybody's. This one they
    # search anyway.
    with _handlers_kept(), chdir(sysconfig.get_path("purelib")):
        try:
            import ray
        except ImportError:
            raise UsageError("backend.name = 'ray' needs Ray: pip install 'mugrpo[ray]'") from None
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **local_options,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"no Ray cluster answers at {address} ({str(error).splitlines()[0]}); name one "
                "in RAY_ADDRESS, or start one with `ray start --head`"
            ) from None
    return ray


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restore the run's signal handlers after the block. Ray replaces the one for SIGTERM."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
