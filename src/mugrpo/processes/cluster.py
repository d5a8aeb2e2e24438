"""Ray, where a run uses it: connected to once, or started on this machine for the run."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from mugrpo.config.backends import RayBackend
from mugrpo.disk.errors import UsageError

_PATIENCE = 10.0  # seconds for a cluster to take a connection
_OBJECT_STORE = 1 << 28  # bytes of a Ray that is started here: only messages go through it


def connected(options: RayBackend) -> Any:
    """The module ray, connected. Raises UsageError where it is missing or no cluster answers.

    A Ray that is started here ends with the thread that calls this first.
    """
    return _connected(options.address or os.environ.get("RAY_ADDRESS") or "local")


@cache
def _connected(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    started = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    _require_listener(address)
    with _handlers_kept():
        try:
            import ray
        except ImportError:
            raise UsageError("backend.name = 'ray' needs Ray: pip install 'mugrpo[ray]'") from None
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **(started if address == "local" else {}),
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _no_answer(address, str(error).splitlines()[0]) from None
    return ray


def _require_listener(address: str) -> None:
    """Raise UsageError where nobody listens at host:port; Ray itself would wait for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        try:
            socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
        except OSError as error:
            raise _no_answer(address, error.strerror or str(error)) from None


def _no_answer(address: str, reason: str) -> UsageError:
    return UsageError(
        f"no Ray answers at {address} ({reason}); name the cluster with --backend.address, or "
        "start one with `ray start --head`"
    )


def require_room(options: RayBackend, cpus: float, gpus: float) -> None:
    """Raise UsageError where what is reserved together can never be had at once.

    A cluster that lacks it may grow: there Ray waits.
    """
    ray = connected(options)
    there = ray.cluster_resources()
    grows = options.address or os.environ.get("RAY_ADDRESS")
    for kind, wanted in (("CPU", cpus), ("GPU", gpus)):
        if wanted > there.get(kind, 0) and not grows:
            raise UsageError(
                f"engines and updates want {wanted:g} {kind}s at once, this machine's Ray has "
                f"{there.get(kind, 0):g}; lower --engine.processes, --distributed.processes, "
                "--backend.engine_cpus or --backend.rank_cpus, or name a cluster with "
                "--backend.address"
            )


def on_gpus(options: RayBackend) -> bool:
    """Whether engines and ranks reserve GPUs."""
    there = _gpus_there(options.address or os.environ.get("RAY_ADDRESS") or "local")
    return there if options.gpus is None else options.gpus


@cache
def _gpus_there(address: str) -> bool:
    """As it is at first: an answer that changed would change what a run computes on."""
    return bool(_connected(address).cluster_resources().get("GPU", 0))


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself; the run has handled it already."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
