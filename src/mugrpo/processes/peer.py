"""Peer processes: how this process starts one, exchanges messages with it, and ends it.

A peer runs its own program, which uses `child`. Both sides exchange JSON (`messages`). A peer and
all of its group end with the process that started it, however that process ends.
"""

import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeVar

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.processes.lifetime import passed_on
from mugrpo.processes.messages import Inbox, send, visible

TICK = 0.5  # seconds after which a caller that waits for a message gets control back
_ENDING = 5.0  # seconds that a process has to end by itself after closing its channel
_STDERR = 2

P = TypeVar("P", bound="Peer")


class PeerLost(Exception):
    """The loss of a peer: it has ended, or has read or sent nothing for too long."""

    def __init__(self, text: str, ended: str | None = None) -> None:
        super().__init__(text)
        self.ended = ended  # how it ended, or None if it has not


class Peer:
    """A peer process on this machine."""

    def __init__(
        self,
        command: Sequence[str],
        setup: str,
        *,
        silence: float | None,
        environment: Mapping[str, str],
        log: Path | None = None,
    ) -> None:
        """Start `command`, with the descriptors of `child.Channel` appended, and send `setup`.

        Its output goes to `log`, or to this process's stderr. `environment` is added to this
        process's environment. Raises OSError if the command cannot be run.
        """
        self.silence: float | None = silence  # longest silence in seconds; None for no limit
        self._spoke = time.monotonic()  # when either side last sent a message
        self._inbox = Inbox()
        self._ended: str | None = None
        self._lifeline, their_lifeline = socket.socketpair()  # never carries data, see `child`
        self._channel, theirs = socket.socketpair()
        with theirs, their_lifeline:
            descriptors = theirs.fileno(), their_lifeline.fileno()
            if log:
                log.parent.mkdir(parents=True, exist_ok=True)
            with open(log, "ab") if log else nullcontext(_STDERR) as out:
                self.process = subprocess.Popen(
                    [*command, *map(str, descriptors)],
                    pass_fds=descriptors,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=passed_on(**environment),
                    start_new_session=True,
                )
        with suppress(PeerLost):  # if it has already ended, `hear` says how
            self.send(setup)

    @property
    def due(self) -> float:
        """The time, by time.monotonic(), at which the peer has been silent for too long."""
        return math.inf if self.silence is None else self._spoke + self.silence

    def send(self, text: str) -> None:
        """Send a message, which is JSON text, and restart the clock of the peer's silence.

        Raises PeerLost if the peer does not read it.
        """
        self._spoke = time.monotonic()
        try:
            self._channel.settimeout(self.silence)
            send(self._channel, text)
        except TimeoutError:
            raise PeerLost(f"has read nothing for {self.silence:g} s") from None
        except OSError:
            raise self._lost() from None

    def hear(self, patience: float = TICK) -> Any:
        """Return the peer's next message, or None if it sends nothing for `patience` seconds.

        Raises PeerLost if it has ended, or has sent nothing for `silence` seconds.
        """
        try:
            while (message := self._inbox.message()) is None:
                if not wait([self._channel], patience):
                    if time.monotonic() >= self.due:
                        raise PeerLost(f"has sent nothing for {self.silence:g} s")
                    return None
                if not self._inbox.read(self._channel):
                    raise self._lost()
        except OSError:
            raise self._lost() from None
        self._spoke = time.monotonic()
        return message

    def end(self) -> str:
        """Kill the peer and all of its group. Return how it ended, now or earlier."""
        if self._ended is None:  # before the connection closes, at which it might end by itself
            self._ended = kill_with_all(self.process)
        self._lifeline.close()
        self._channel.close()
        return self._ended

    def _lost(self) -> PeerLost:
        """Wait for a process that has closed its channel to end. Return an error that says how."""
        deadline = time.monotonic() + _ENDING
        while _runs(self.process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        ended = self.end()
        return PeerLost(f"ended with {ended}", ended)


def audible(peers: Sequence[P], patience: float = math.inf) -> list[P]:
    """Wait until some of `peers` send a message, end, or have been silent for too long.

    Return these, or an empty list after `patience` seconds.
    """
    deadline = min((peer.due for peer in peers), default=math.inf)
    patience = min(patience, max(0.0, deadline - time.monotonic()))
    assert patience < math.inf, "without a deadline or patience, this would wait forever"
    readable = wait([peer._channel for peer in peers], patience)
    now = time.monotonic()
    return [peer for peer in peers if peer._channel in readable or peer.due <= now]


def raise_failure(message: dict[str, Any]) -> None:
    """Raise the failure that `message` reports, if any.

    That is MemoryError, RunStopped or UsageError ("refused").
    """
    kinds = {"memory": MemoryError, "stopped": RunStopped, "refused": UsageError}
    if (kind := message.get("failed")) is not None:
        raise kinds[kind](visible(message["text"]))


def kill_with_all(process: subprocess.Popen[bytes]) -> str:
    """Kill a process that leads its own session, and its group. Return how it ended."""
    with suppress(ProcessLookupError):  # before waiting: until then no other process can get its id
        os.killpg(process.pid, signal.SIGKILL)
    status = process.wait()
    return f"status {status}" if status >= 0 else signal.Signals(-status).name


def _runs(pid: int) -> bool:
    """Return whether a child process runs, without consuming its exit status."""
    with suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    return False
