"""A process of ours at the other end of a channel: started, told, heard, ended.

It runs a program of its own, whose side is `child`; both sides say JSON (`messages`). It ends with
the process that started it, however that one ends, and so does all that it has started itself.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeVar

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.processes.messages import Inbox, send

TICK = 0.5  # seconds after which one that waits for a word is given its turn
_ENDING = 5.0  # seconds for a process that has closed its channel to end by itself
_STDERR = 2

P = TypeVar("P", bound="Peer")


class PeerLost(Exception):
    """The peer has ended, or is given up because it takes or says nothing."""

    def __init__(self, text: str, ended: str | None = None) -> None:
        super().__init__(text)
        self.ended = ended  # how, if it has


_peers: weakref.WeakSet[Peer] = weakref.WeakSet()


class Peer:
    """Such a process on this machine."""

    def __init__(
        self,
        command: Sequence[str],
        setup: str,
        *,
        silence: float,
        environment: Mapping[str, str],
        log: Path | None = None,
    ) -> None:
        """Start `command`, with the descriptors of `child.Channel` behind it, and send `setup`.

        What it prints goes to `log`, or to this process's stderr. `environment` is added to this
        process's. Raise OSError if the command cannot be run.
        """
        self.silence: float | None = silence  # seconds that it may say nothing; None: any number
        self._spoke = time.monotonic()  # either side, last
        self._inbox = Inbox()
        self._owner = os.getpid()
        self._ended: str | None = None
        self._channel, theirs = socket.socketpair()
        self._lifeline, held = socket.socketpair()  # no word is ever said there, see `child`
        with theirs, held:
            descriptors = theirs.fileno(), held.fileno()
            try:
                with open(log, "ab") if log else nullcontext(_STDERR) as out:
                    self.process = subprocess.Popen(
                        [*command, *map(str, descriptors)],
                        pass_fds=descriptors,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=out,
                        env={**os.environ, **environment},
                        start_new_session=True,
                    )
            except OSError:
                self._hang_up()
                raise
        _peers.add(self)
        with suppress(PeerLost):  # it ended at once: whoever hears it learns how
            self.send(setup)

    @property
    def ours(self) -> bool:
        """Whether this process started it, and is not a fork of the one that did."""
        return self._owner == os.getpid()

    @property
    def due(self) -> float:
        """The time, as time.monotonic() has it, at which it has said nothing for too long."""
        return math.inf if self.silence is None else self._spoke + self.silence

    def send(self, text: str) -> None:
        """Send a message, JSON. Its silence counts from here. Raise PeerLost if it is not taken."""
        self._spoke = time.monotonic()
        try:
            self._channel.settimeout(self.silence)
            send(self._channel, text)
        except TimeoutError:
            raise PeerLost(f"has taken nothing for {self.silence:g} s") from None
        except OSError:
            raise self._lost() from None

    def hear(self, patience: float = TICK) -> Any:
        """Return its next message, or None if it says nothing for `patience` seconds.

        Raise PeerLost once it has ended, or has said nothing for `silence` seconds.
        """
        try:
            while (message := self._inbox.message()) is None:
                if not wait([self._channel], patience):
                    if time.monotonic() >= self.due:
                        raise PeerLost(f"has said nothing for {self.silence:g} s")
                    return None
                if not self._inbox.read(self._channel):
                    raise self._lost()
        except OSError:
            raise self._lost() from None
        except ValueError:  # no message of ours
            ended = self.end()
            raise PeerLost(f"ended with {ended}", ended) from None
        self._spoke = time.monotonic()
        return message

    def end(self) -> str:
        """Kill it with all that it started. Return how it ended, which may have been before.

        A fork of the process that started it only lets go of it.
        """
        self._hang_up()
        if self._ended is None:
            self._ended = kill_with_all(self.process) if self.ours else ""
        return self._ended

    def _lost(self) -> PeerLost:
        """Note how a process that closed its channel has ended."""
        until = time.monotonic() + _ENDING
        while self._ended is None and _runs(self.process.pid) and time.monotonic() < until:
            time.sleep(0.01)
        ended = self.end()
        return PeerLost(f"ended with {ended}", ended)

    def _hang_up(self) -> None:
        self._channel.close()
        self._lifeline.close()


def audible(peers: Sequence[P], patience: float = math.inf) -> list[P]:
    """Wait until some of `peers` say something, end, or have been silent for too long.

    Return those, or none after `patience` seconds.
    """
    until = min((peer.due for peer in peers), default=math.inf)
    patience = min(patience, max(0.0, until - time.monotonic()))
    assert patience < math.inf, "nothing to wait for"
    heard = wait([peer._channel for peer in peers], patience)
    now = time.monotonic()
    return [peer for peer in peers if peer._channel in heard or peer.due <= now]


def raise_failure(message: dict[str, Any]) -> None:
    """Raise what stopped the peer's work if that is no crash: memory, the model or its options."""
    kinds = {"memory": MemoryError, "stopped": RunStopped, "refused": UsageError}
    if (kind := message.get("failed")) is not None:
        raise kinds[kind](message["text"])


def end_with_all(process: subprocess.Popen[bytes], patience: float) -> None:
    """Ask a process with a session of its own, and all that it started, to end.

    Kill what has not after `patience` seconds.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience)
        return
    kill_with_all(process)


def kill_with_all(process: subprocess.Popen[bytes]) -> str:
    """Kill a process with a session of its own, and all that it started.

    Return how it ended, which may have been before.
    """
    with suppress(ProcessLookupError):  # before the wait: until then its number is no other's
        os.killpg(process.pid, signal.SIGKILL)
    status = process.wait()
    return f"status {status}" if status >= 0 else signal.Signals(-status).name


def _runs(pid: int) -> bool:
    """Return whether a child runs. Its status stays to be waited for."""
    with suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    return False


def _end_all() -> None:
    for peer in list(_peers):
        peer.end()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_end_all)  # lest a fork keep them when their parent ends
