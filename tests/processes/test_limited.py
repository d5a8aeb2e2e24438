"""Work in a fork returns what it returns here, and its limits stop it without a trace."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from mugrpo.processes.limited import LimitError, limited


def within(work: Any, seconds: int = 5, megabytes: int = 64) -> Any:
    return limited(work, seconds=seconds, megabytes=megabytes)


@pytest.mark.parametrize("value", [[], {"a": [1, None, 2.5]}, "ü \ud800", "x" * 10_000_000])
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


def test_another_thread_does_not_disturb_it():
    over = threading.Event()
    thread = threading.Thread(target=lambda: [None for _ in iter(over.is_set, True)])
    thread.start()
    try:
        assert [within(lambda n=n: n) for n in range(5)] == [0, 1, 2, 3, 4]
    finally:
        over.set()
        thread.join()
