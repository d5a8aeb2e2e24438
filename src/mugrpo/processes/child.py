"""The child's side of a peer process (`peer`): its channel to the parent, and how it ends.

`guard` splits a worker's program in two. The child does the work. The parent stays behind as the
warden:

- It is the subreaper of all that the worker starts, so that daemons with sessions of their own are
  its children once their parents have ended. When the worker or the run ends, it kills them all.
- It counts the memory of the whole tree, shared maps included, and ends a tree that takes too much.
- It passes on the output of the tree, up to a limit.

Only Linux has what a warden needs. Elsewhere, the group of the worker is all that ends with it.

This module imports only the standard library, and `messages` by a relative import, so that an
interpreter without mugrpo can load it too (`engines/worker.py`).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import resource
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .messages import Inbox, send, to_json

_HEARTBEAT = 1.0  # longest time in seconds between messages while work makes progress


class Channel:
    """The connection to the parent. Its descriptors are the last two arguments of the command.

    Once it is created, this process and its children end with the parent, Ctrl-C is left to the
    parent, and a crash leaves no core dump.
    """

    def __init__(self) -> None:
        self._socket, self._lifeline = (socket.socket(fileno=int(word)) for word in sys.argv[-2:])
        self._socket.set_inheritable(False)
        self._lifeline.set_inheritable(False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        end_with(self._lifeline)
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
    """Limit this process's private writable memory. 0 sets no limit.

    That stops runaway allocations, but does not count what a library maps or reserves.
    """
    limit = megabytes << 20 if megabytes else resource.RLIM_INFINITY
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
    and whichever thread of the parent started this process. Elsewhere a thread waits for it.
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


OUT_OF_MEMORY = 117  # the exit status if the tree took too much memory
LONGEST_LOG = 8 << 20  # bytes of output that are passed on

_TICK = 0.1  # seconds between two looks at the tree's memory
_SUBREAPER, _DEATH_SIGNAL = 36, 1  # PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG
_PAGE = resource.getpagesize()
_COUNTED = re.compile(r"^(?:Pss_Anon|Pss_Shmem|SwapPss): +(\d+) kB$", re.MULTILINE)
_LEFT_OUT = b"\n[further output of this reward worker is left out]\n"


def guard(megabytes: int) -> None:
    """Return in a child process, while this one becomes its warden and ends as the child does.

    The tree may take `megabytes` of memory; 0 sets no limit. The last argument of the command is
    the lifeline, as for `child.Channel`.
    """
    if not _available():
        return
    _prctl(_SUBREAPER, 1)
    warden, (read, write) = os.getpid(), os.pipe()
    worker = os.fork()
    if worker:
        os.close(write)
        _watch(worker, int(sys.argv[-1]), read, megabytes << 20)
    os.close(read)
    os.setsid()
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != warden:
        os._exit(1)
    os.dup2(write, 1)
    os.dup2(write, 2)
    os.close(write)


def _available() -> bool:
    own = Path(f"/proc/self/task/{os.getpid()}/children")
    return sys.platform == "linux" and own.exists() and hasattr(os, "pidfd_open")


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")


def _watch(worker: int, lifeline: int, output: int, limit: int) -> None:
    """Watch until the worker has ended or has to, then end all it started and this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ended, written, out_of_memory = os.pidfd_open(worker), 0, False
    sources, ready = [lifeline, ended, output], list[int]()
    while lifeline not in ready and ended not in ready and not out_of_memory:
        ready, _, _ = select.select(sources, [], [], _TICK)
        if output in ready:
            if piece := os.read(output, 1 << 16):
                written += _pass_on(piece, written)
            else:  # the whole tree has closed it: from now on it would always be ready
                sources.remove(output)
        out_of_memory = 0 < limit < _memory(limit)
    status = _end_all(worker)
    os.set_blocking(output, False)
    with suppress(BlockingIOError):
        while piece := os.read(output, 1 << 16):
            written += _pass_on(piece, written)
    if out_of_memory:
        os._exit(OUT_OF_MEMORY)
    if status < 0 and -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


def _end_all(worker: int) -> int:
    """Kill all children, and theirs as they become children. Return the worker's exit code."""
    code = 1
    while True:
        for child in _children(os.getpid()):
            os.kill(child, signal.SIGKILL)  # not reaped yet, so the id is still its own
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return code
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)


def _children(pid: int) -> Iterator[int]:
    with suppress(OSError):  # it may have ended
        for task in os.listdir(f"/proc/{pid}/task"):
            yield from map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())


def _tree(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _tree(child)


def _memory(limit: int) -> int:
    """Return the bytes that all descendants take, or a larger number if that is below `limit`.

    Pages that several of them share count once. Those of files, such as libraries, do not count.
    """
    tree = list(_tree(os.getpid()))
    resident = sum(int((_proc(pid, "statm").split() or ["0", "0"])[1]) for pid in tree) * _PAGE
    if resident <= limit:
        return resident
    return 1024 * sum(sum(map(int, _COUNTED.findall(_proc(pid, "smaps_rollup")))) for pid in tree)


def _proc(pid: int, name: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text()
    return ""


def _pass_on(piece: bytes, written: int) -> int:
    """Write a piece of output to stderr if there is room for it. Return its length.

    A file that several workers write has the limit as a whole.
    """
    about = os.fstat(2)
    size = max(written, about.st_size if stat.S_ISREG(about.st_mode) else 0)
    if size <= LONGEST_LOG:
        text = piece[: LONGEST_LOG - size] + (_LEFT_OUT if size + len(piece) > LONGEST_LOG else b"")
        with suppress(OSError):
            os.write(2, text)
    return len(piece)
