"""Worker processes for the code of others, such as reward functions: both of their sides.

The run starts a `Worker`, whose program calls `serve`. It loads what it needs, says that it is
ready, then answers one call at a time.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.processes.child import OUT_OF_MEMORY, Channel, cpu_deadline, guard, limit_memory
from mugrpo.processes.messages import printable, to_json
from mugrpo.processes.peer import Peer, PeerLost

STARTING_SECONDS = 120.0  # for the imports of functions, which may include torch


@dataclass(frozen=True)
class Limits:
    """What a worker may take for a call. 0 sets no limit."""

    seconds: float  # by the clock
    computing: float  # seconds of CPU time
    megabytes: int  # of memory, with all that it starts


class Worker(Peer):
    """A process that answers calls. Its silence is limited only while it works on one.

    It runs `python -m MODULE`, or the file `module` if `python` names another interpreter.
    `kind` is what an error message calls it. `starting` limits the seconds of its start, if it is
    not None. Its program gets `setup` with the limits. Raises OSError if it cannot be run.
    """

    def __init__(
        self,
        module: str,
        setup: dict[str, Any],
        limits: Limits,
        *,
        kind: str,
        starting: float | None,
        log: Path | None,
        python: str | None = None,
    ) -> None:
        program = [sys.executable, "-m", module] if python is None else [python, "-P", module]
        command = [*program, str(limits.megabytes)]
        environment = {
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "PYTHONHASHSEED": "0",  # so that an answer does not depend on the order of a set
        }
        limited = {**setup, "memory_mb": limits.megabytes, "timeout": limits.computing}
        super().__init__(
            command,
            to_json(limited),
            silence=starting,
            environment=environment,
            log=log,
            guarded=True,
        )
        self.limits, self.kind, self._starting = limits, kind, starting
        self.ready = False

    def loss(self, lost: PeerLost) -> tuple[str, bool] | None:
        """Return (reason, True) if a call took too much, or None if the worker just died."""
        if lost.ended is None:
            return f"not finished within {self.limits.seconds:g} seconds", True
        if lost.ended == signal.SIGPROF.name:
            return f"not finished after {self.limits.computing:g} seconds of computing", True
        if lost.ended == f"status {OUT_OF_MEMORY}":
            return f"took more than {self.limits.megabytes} MiB of memory", True
        return None

    def never_ready(self, lost: PeerLost, proven: bool) -> Exception:
        """Return the error for a worker that is lost before it is ready.

        It is UsageError, or RunStopped if another was ready (`proven`) or something else killed it.
        """
        if lost.ended is None:
            reason = f"a {self.kind} was not ready after {self._starting:g} seconds"
        else:
            reason = f"a {self.kind} died while it was loading ({lost.ended})"
        return (RunStopped if proven or lost.ended == "SIGKILL" else UsageError)(reason)


Answer = Callable[[Any], dict[str, Any]]


def serve(load: Callable[[dict[str, Any]], tuple[dict[str, Any], Answer]]) -> None:
    """Be the program of a worker, whose arguments are MEGABYTES SOCKET LIFELINE.

    It communicates only through the socket. It ends when the run that started it ends, even during
    a busy loop (`child`), and all that it started ends with it (`guard`). `load` gets the setup,
    and returns what to tell the run and the function that answers a call. Its memory and the time
    that it computes on a call are limited; the run limits the time that a call waits.
    """
    guard(int(sys.argv[-3]))
    channel = Channel()
    setup = channel.receive()
    limit_memory(setup["memory_mb"])
    try:
        said, answer = load(setup)
    except UsageError as error:
        channel.send({"refused": str(error)})
        return
    channel.send({"ready": True, **said})
    while True:
        call = channel.receive()
        with cpu_deadline(setup["timeout"]):
            message = answer(call)
        channel.send(message)


def failure(
    label: str,
    error: BaseException,
    unfinished: tuple[type[BaseException], ...] = (MemoryError, RecursionError),
) -> dict[str, Any]:
    """Return the answer for a call that raised `error` in what `label` names.

    "unfinished" means that it took too much (the error is one of `unfinished`), "spent" that the
    process must not be used again.
    """
    try:
        text = "; ".join([str(error), *getattr(error, "__notes__", ())])
    except Exception:
        text = ""
    return {
        "failure": printable(f"{label}: {type(error).__name__}: {text}".removesuffix(": ")),
        "unfinished": isinstance(error, unfinished),
        "spent": isinstance(error, MemoryError),
    }
