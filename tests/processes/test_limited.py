"""Work in a fork returns what it returns here, and its limits stop it without a trace."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mugrpo.processes.limited import LimitError, limited
from tests.cases import table
from tests.waiting import alive, soon, until


def within(work: Any, seconds: int = 5, megabytes: int = 64) -> Any:
    return limited(work, seconds=seconds, megabytes=megabytes)


@table("value", [[], {"a": [1, None, 2.5]}, "ü \ud800", "x" * 10_000_000])
def test_a_value_comes_back_however_long_it_is(value: Any):
    assert within(lambda: value) == value


def test_the_work_is_done_elsewhere_and_says_nothing(capfd: pytest.CaptureFixture[str]):
    seen: list[int] = []

    def work() -> int:
        seen.append(1)
        os.write(1, b"out")
        os.write(2, b"err")
        return os.getpid()

    assert within(work) != os.getpid()
    assert seen == [] and capfd.readouterr() == ("", "")


HOLDS_A_LOCK = """
import fcntl, os, sys
from mugrpo.processes.limited import limited

def work():
    print(os.getpid(), file=open(sys.argv[2], "w"), flush=True)
    while True:
        pass

lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
limited(work, seconds=60, megabytes=64)
"""


def test_a_fork_ends_with_the_process_that_waits_for_it(tmp_path: Path):
    """A lock of that process is free at once, so its run can be resumed."""
    lock, pid = tmp_path / "lock", tmp_path / "pid"
    process = subprocess.Popen([sys.executable, "-c", HOLDS_A_LOCK, lock, pid])
    fork = int(until(lambda: pid.exists() and pid.read_text()))
    with open(lock) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    process.kill()
    process.wait()
    with open(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert soon(lambda: not alive(fork), 10)


def test_a_fork_holds_no_file_of_the_process(tmp_path: Path):
    reader, writer = os.pipe()
    with open(tmp_path / "lock", "w") as lock, socket.socket() as connection:
        held = (reader, writer, lock.fileno(), connection.fileno())
        assert within(lambda: [os.readlink(f"/proc/self/fd/{one}") for one in held]) == [
            "/dev/null"
        ] * len(held)
        assert os.readlink(f"/proc/self/fd/{lock.fileno()}") == str(tmp_path / "lock")
    os.close(reader)
    os.close(writer)


def test_time_is_limited_even_in_a_single_operation():
    """Python handles no signal during the power, which would take minutes."""
    for work in (lambda: 7 ** (9**9) > 0, lambda: list(iter(int, 1))):
        with pytest.raises(LimitError, match="takes more than 1 s of CPU time"):
            within(work, seconds=1, megabytes=4096)


def test_memory_is_limited_beyond_what_the_process_has_already():
    held = bytearray(100 << 20)
    assert within(lambda: len(bytearray(40 << 20))) == 40 << 20
    with pytest.raises(LimitError, match="takes more than 64 MiB of memory"):
        within(lambda: len(bytearray(80 << 20)))
    assert len(held) == 100 << 20


def test_a_crash_is_a_limit_too():
    with pytest.raises(LimitError, match="ends with SIGKILL"):
        within(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(LimitError, match="ends with status 1"):
        within(lambda: 1 / 0)


def test_work_is_done_again_if_something_kills_its_process(tmp_path: Path):
    struck = tmp_path / "struck"

    def work() -> int:
        if not struck.exists():
            struck.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 7

    assert within(work) == 7


def test_another_thread_does_not_disturb_it():
    over = threading.Event()
    thread = threading.Thread(target=lambda: [None for _ in iter(over.is_set, True)])
    thread.start()
    try:
        assert [within(lambda n=n: n) for n in range(5)] == [0, 1, 2, 3, 4]
    finally:
        over.set()
        thread.join()
