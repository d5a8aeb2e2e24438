"""A process of an engine at the other end of a channel: started, fed, heard, ended.

It runs `worker.py` under an interpreter that may have another environment; what it prints goes to a
log.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mugrpo.disk.errors import UsageError
from mugrpo.processes.ending import kill_with_all
from mugrpo.processes.messages import Inbox, send, to_json

_WORKER = Path(__file__).with_name("worker.py")
_TICK = 0.5  # seconds after which one that waits for a word is given its turn


class EngineLost(Exception):
    """The process ended, or says nothing any more."""


@dataclass(frozen=True)
class Host:
    """How a process of the engine is started, and what it is told first."""

    python: str | None  # the interpreter; None: the one that starts it
    setup: dict[str, Any]  # backend and its options, as JSON has them
    environment: dict[str, str]  # besides that of what starts it
    log: Path
    vocab_size: int  # of the policy
    reloads: bool  # takes other weights while it runs
    exact: bool  # the same requests together give the same completions to the bit
    gpus: int = 1  # that it computes on, where there are any


class Child(Protocol):
    """Such a process, wherever it runs."""

    weights: str | None  # that it has loaded
    waits: bool  # for a machine to run on: its silence means nothing yet

    def send(self, text: str) -> None:
        """Say `text`, JSON; raises EngineLost where it is not taken."""
        ...

    def hear(self) -> Any:
        """Its next message, None where it says nothing for a while; raises EngineLost once it has
        ended."""
        ...

    def end(self) -> str:
        """Kill it with all that it started; says how it ended."""
        ...


class LocalChild:
    """See `Child`: a process on this machine, which ends with the one that starts it."""

    def __init__(self, host: Host, silence: float) -> None:
        """Raises UsageError where the interpreter cannot be run."""
        self.weights: str | None = None
        self.waits = False
        self._silence = silence
        self._inbox = Inbox()
        python = host.python or sys.executable
        self._channel, theirs = socket.socketpair()
        host.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with theirs, open(host.log, "ab") as log:
                self.process = subprocess.Popen(
                    [python, "-P", str(_WORKER), str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **host.environment},
                    start_new_session=True,
                )
        except OSError as error:
            self._channel.close()
            raise UsageError(
                f"engine.python = {python!r} cannot be run ({error.strerror}); name an interpreter "
                "that has the engine"
            ) from None
        self._channel.settimeout(silence)
        with suppress(OSError):  # it died already: the next message says so
            send(self._channel, to_json(host.setup))

    def send(self, text: str) -> None:
        try:
            send(self._channel, text)
        except TimeoutError:
            raise EngineLost(f"has taken nothing for {self._silence:g} s") from None
        except OSError:
            raise EngineLost(f"ended with {self._ended()}") from None

    def hear(self, wait: float = _TICK) -> Any:
        while (message := self._inbox.message()) is None:
            if not select.select([self._channel], [], [], wait)[0]:
                return None
            try:
                there = self._inbox.read(self._channel)
            except OSError:
                there = False
            if not there:
                raise EngineLost(f"ended with {self._ended()}")
        return message

    def end(self) -> str:
        self._channel.close()
        return kill_with_all(self.process)

    def _ended(self) -> str:
        """How a process that closed its channel ended by itself."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        return self.end()
