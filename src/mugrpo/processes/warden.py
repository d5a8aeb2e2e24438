"""A warden: a process that watches a worker, and ends with it all that the worker has started.

`guard` splits a program in two. The child does the work. The parent stays behind as the warden:

- It is the subreaper of all that the worker starts, so that daemons with sessions of their own are
  its children once their parents have ended. When the worker or the run ends, it kills them all.
- It counts the memory of the whole tree, shared maps included, and ends a tree that takes too much.
- It passes on the output of the tree, up to a limit.

Only Linux has what this needs. Elsewhere, the group of the worker is all that ends with it
(`child`). This module imports only the standard library.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import select
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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
