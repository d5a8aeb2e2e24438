"""Work on what someone else wrote, in a fork of this process with limits on time and memory."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from mugrpo.processes.lifetime import end_with_parent
from mugrpo.processes.messages import from_json, to_json

_PATIENCE = 10  # seconds of the clock for each second of CPU time, on a busy machine


class LimitError(Exception):
    """Work that took more than it may. The text names the limit: "takes more than ..."."""


def limited(work: Callable[[], Any], *, seconds: int, megabytes: int) -> Any:
    """Return what `work` returns in a fork of this process. It must have a JSON form.

    The fork may take `seconds` of CPU time, and `megabytes` of memory beyond what this process has.
    Raises LimitError if it takes more, or crashes. If something kills it, `work` is done once more.
    `work` must not raise anything but MemoryError, and not wait for other threads: a fork has none.
    It sees the files that are open here as empty, and its own output goes nowhere.
    """
    answer, status = _forked(work, seconds, megabytes)
    if answer is not None and status == -signal.SIGKILL:  # no limit: something else killed it
        answer, status = _forked(work, seconds, megabytes)
    if answer is None or status == -signal.SIGXCPU:
        raise LimitError(f"takes more than {seconds} s of CPU time")
    if status == _OUT_OF_MEMORY:
        raise LimitError(f"takes more than {megabytes} MiB of memory")
    if status:
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        raise LimitError(f"takes so much that its process ends with {how}")
    return from_json(answer.decode("utf-8", "surrogatepass"))


def _forked(work: Callable[[], Any], seconds: int, megabytes: int) -> tuple[bytes | None, int]:
    """Do `work` in a fork. Return its answer, or None if that takes too long, and its exit code."""
    parent, (reader, writer) = os.getpid(), os.pipe()
    if not (pid := os.fork()):
        end_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        _work(work, writer, seconds, megabytes)
    os.close(writer)
    with open(reader, "rb", buffering=0) as pipe:
        answer = _all_of(pipe.fileno(), time.monotonic() + _PATIENCE * (seconds + 1))
    if answer is None:
        os.kill(pid, signal.SIGKILL)
    return answer, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


_OUT_OF_MEMORY = 3  # exit status


def _work(work: Callable[[], Any], writer: int, seconds: int, megabytes: int) -> NoReturn:
    """Do `work` in the fork, and end it."""
    status = 1
    try:
        _let_go_of_files(writer)
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        limit = _private_bytes() + (megabytes << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        answer = to_json(work()).encode("utf-8", "surrogatepass")
        with open(writer, "wb") as pipe:
            pipe.write(answer)
        status = 0
    except MemoryError:
        status = _OUT_OF_MEMORY
    finally:
        os._exit(status)


def _let_go_of_files(kept: int) -> None:
    """Put nothing in the place of every open file but `kept`.

    Otherwise the fork would hold the run's lock, and the connections that other processes end with,
    for as long as it works. Closed descriptors could be opened again, and then be closed by objects
    that had them before.
    """
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in {0, 1, 2, *map(int, os.listdir("/dev/fd"))} - {kept, silence}:
        os.dup2(silence, descriptor)


def _private_bytes() -> int:
    """Return the private writable memory of this process: what RLIMIT_DATA counts, on Linux."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 1 << 40  # another system, which does not have this limit


def _all_of(pipe: int, deadline: float) -> bytes | None:
    """Return all that a pipe carries until it closes, or None if it is open at the deadline."""
    parts: list[bytes] = []
    while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if not (part := os.read(pipe, 1 << 16)):
            return b"".join(parts)
        parts.append(part)
    return None
