"""The child's side of a process that another one started (`peer`): its channel, and its end.

It imports the standard library alone, and its neighbor relatively: an interpreter without mugrpo
loads it too (`engines/worker.py`).
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from .messages import Inbox, send, to_json

_HEARTBEAT = 1.0  # seconds between messages, at least, while work makes progress


class Channel:
    """The conversation with the parent. Its descriptors are the last two words of the command.

    From its creation on this process and all that it starts end with the parent, Ctrl-C is the
    parent's business, and a crash leaves no core.
    """

    def __init__(self) -> None:
        self._socket, self._lifeline = (socket.socket(fileno=int(word)) for word in sys.argv[-2:])
        self._socket.set_inheritable(False)
        self._lifeline.set_inheritable(False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _end_with(self._lifeline)
        self._inbox = Inbox()
        self._spoke = time.monotonic()

    def receive(self) -> Any:
        """Return the next message; end the process if the parent has hung up."""
        while (message := self._inbox.message()) is None:
            try:
                open_ = self._inbox.read(self._socket)
            except ConnectionResetError:
                open_ = False
            if not open_:
                sys.exit()
        return message

    def send(self, message: dict[str, Any]) -> None:
        """Send `message`; end the process if the parent has hung up."""
        try:
            send(self._socket, to_json(message))
        except (BrokenPipeError, ConnectionResetError):
            sys.exit()
        self._spoke = time.monotonic()

    def heartbeat(self) -> None:
        """Tell the parent that work goes on, if it has heard nothing for a while."""
        if time.monotonic() - self._spoke > _HEARTBEAT:
            self.send({"alive": True})


def limit_memory(megabytes: int) -> None:
    """Limit private writable memory: what a bomb takes, but not what a library maps or reserves."""
    limit = megabytes << 20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _end_with(lifeline: socket.socket) -> None:
    """Have this process's group killed as soon as the parent's end of `lifeline` is closed.

    On Linux the kernel does it, even in the middle of a C loop that holds the interpreter's lock,
    and whichever thread of the parent started this process.
    """
    try:
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    except (AttributeError, OSError):  # another system
        threading.Thread(target=_wait_and_kill, args=[lifeline], daemon=True).start()
        return
    lifeline.setblocking(False)
    with suppress(BlockingIOError):
        _wait_and_kill(lifeline)  # if the parent ended before


def _wait_and_kill(lifeline: socket.socket) -> None:
    lifeline.recv(1)  # nothing is ever sent: this is the end
    os.killpg(0, signal.SIGKILL)
