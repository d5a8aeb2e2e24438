"""Ray: the connection to a cluster, or to a Ray that is started on this machine for the run."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from functools import cache
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.ray import RayBackend

LOOPBACK = "127.0.0.1"
_PATIENCE = 10.0  # seconds to wait for a cluster to accept a connection
_OBJECT_STORE = 1 << 28  # bytes, for a Ray started here; it carries only messages


def connected(options: RayBackend) -> Any:
    """Return the module ray, connected to the cluster.

    A Ray that is started here ends with the thread that first calls this. Raises UsageError if Ray
    is not installed or no cluster answers.
    """
    return _connected(_address(options) or "local")


def _address(options: RayBackend) -> str | None:
    return options.address if options.address else os.environ.get("RAY_ADDRESS")


@cache
def _connected(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    local_options: dict[str, Any] = {}
    if address == "local":
        # Whoever reaches a port of Ray's can run code: only this machine does, and needs a token.
        local_options = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # as there, listen on loopback
        if "RAY_AUTH_MODE" not in os.environ:
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    _require_listener(address)
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
            raise _no_answer(address, str(error).splitlines()[0]) from None
    return ray


def _require_listener(address: str) -> None:
    """Raise UsageError if nothing listens at host:port. Ray itself would wait for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        try:
            socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
        except OSError as error:
            raise _no_answer(address, error.strerror or str(error)) from None


def _no_answer(address: str, reason: str) -> UsageError:
    return UsageError(
        f"no Ray cluster answers at {address} ({reason}); name one with "
        "--backend.address, or start one with `ray start --head`"
    )


def reserved(options: RayBackend, ranks: int, engines: Sequence[int]) -> tuple[float, int]:
    """Return the CPUs and GPUs that `ranks` and engines, with so many GPUs each, reserve."""
    cpus = ranks * options.rank_cpus + len(engines) * options.engine_cpus
    return cpus, ranks + sum(engines) if on_gpus(options) else 0


def has_room(options: RayBackend, ranks: int, engines: Sequence[int]) -> bool:
    """Return whether the cluster, as it is now, has what ranks and engines reserve at once."""
    cpus, gpus = reserved(options, ranks, engines)
    resources = connected(options).cluster_resources()
    return bool(cpus <= resources.get("CPU", 0) and gpus <= resources.get("GPU", 0))


def require_room(options: RayBackend, ranks: int, engines: Sequence[int]) -> None:
    """Raise UsageError if this machine's Ray can never provide what they reserve at once.

    A cluster may grow, so on a cluster Ray waits until it is available.
    """
    cpus, gpus = reserved(options, ranks, engines)
    resources = connected(options).cluster_resources()
    grows = _address(options)
    for kind, required in (("CPU", cpus), ("GPU", gpus)):
        if required > resources.get(kind, 0) and not grows:
            raise UsageError(
                f"engines and updates need {required:g} {kind}s at once, but this machine's Ray "
                f"has {resources.get(kind, 0):g}; lower --engine.processes, "
                "--distributed.processes, --backend.engine_cpus or --backend.rank_cpus, or name a "
                "cluster with --backend.address"
            )


def on_gpus(options: RayBackend) -> bool:
    """Return whether engines and ranks reserve GPUs."""
    available = _has_gpus(_address(options) or "local")
    return available if options.gpus is None else options.gpus


@cache
def _has_gpus(address: str) -> bool:
    """Return whether the cluster has GPUs.

    The first answer is kept, so that a run keeps its devices even if the cluster changes.
    """
    return bool(_connected(address).cluster_resources().get("GPU", 0))


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restore the run's signal handlers after the block. Ray replaces the one for SIGTERM."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
