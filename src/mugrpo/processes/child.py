"""The child's side of a peer process (`peer`): its channel to the parent, and how it ends.

This module imports only the standard library, and `messages` by a relative import, so that an
interpreter without mugrpo can load it too (`engines/worker.py`).
"""

import fcntl
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .messages import Inbox, send, to_json

_lifelines: list[socket.socket] = []
_HEARTBEAT = 1.0  # longest time in seconds between messages while work makes progress


class Channel:
    """The connection to the parent. Its descriptors are the last two arguments of the command.

    Once it is created, this process and its children end with the parent, Ctrl-C is left to the
    parent, and a crash leaves no core dump.
    """

    def __init__(self) -> None:
        self._socket, lifeline = (socket.socket(fileno=int(word)) for word in sys.argv[-2:])
        self._socket.set_inheritable(False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        end_with(lifeline)
        self._inbox = Inbox()
        self._spoke = time.monotonic()

    def receive(self) -> Any:
        """Return the next message; end the process, with its group, if the parent has hung up."""
        while (message := self._inbox.message()) is None:
            self._read()
        return message

    def arrived(self) -> Any:
        """Return the next message if it has arrived, or None."""
        while (message := self._inbox.message()) is None:
            if not select.select([self._socket], [], [], 0)[0]:
                return None
            self._read()
        return message

    def _read(self) -> None:
        try:
            open_ = self._inbox.read(self._socket)
        except ConnectionResetError:
            open_ = False
        if not open_:
            _kill_group()

    def send(self, message: dict[str, Any]) -> None:
        """Send `message`; end the process, with its group, if the parent has hung up."""
        try:
            send(self._socket, to_json(message))
        except (BrokenPipeError, ConnectionResetError):
            _kill_group()
        self._spoke = time.monotonic()

    def heartbeat(self) -> None:
        """Tell the parent that work continues, if nothing was sent for `_HEARTBEAT` seconds."""
        if time.monotonic() - self._spoke > _HEARTBEAT:
            self.send({"alive": True})


def limit_memory(megabytes: int) -> None:
    """Limit the private writable memory of this process, and of each that it starts; 0 does not."""
    if not megabytes:
        return
    limit, hard = megabytes << 20, resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)  # a hard limit cannot be raised
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


@contextmanager
def cpu_deadline(seconds: float) -> Iterator[None]:
    """End this process by SIGPROF if it computes for `seconds` within the block. 0 sets no limit.

    The kernel counts CPU time, of all threads, so a busy machine changes nothing. It also ends a C
    loop that holds the interpreter's lock.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def end_with(lifeline: socket.socket) -> None:
    """Arrange that this process's group is killed when the parent's end of `lifeline` closes.

    On Linux the kernel does it. That works even during a C loop that holds the interpreter's lock,
    and, unlike PR_SET_PDEATHSIG, whichever thread of the parent started this process and for all
    processes of the group. Elsewhere a thread waits for it.
    """
    _lifelines.append(lifeline)  # it must stay open
    lifeline.set_inheritable(False)
    try:
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    except (AttributeError, OSError):  # another system
        threading.Thread(target=_wait_and_kill, args=[lifeline], daemon=True).start()
        return
    lifeline.setblocking(False)
    with suppress(BlockingIOError):
        _wait_and_kill(lifeline)  # in case the parent has already ended


def _wait_and_kill(lifeline: socket.socket) -> None:
    lifeline.recv(1)  # nothing is ever sent, so this returns when the parent's end closes
    _kill_group()


def _kill_group() -> None:
    """Kill this process and its children, without waiting for the kernel to do it.

    The kernel closes the descriptors of a killed parent in any order. If this process ended alone
    when its channel closes, its end of the lifeline would close too, and its children would stay.
    """
    os.killpg(0, signal.SIGKILL)
