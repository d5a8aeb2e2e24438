"""One attempt at a run: its command, from the start until the last of its processes is gone."""

import os
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from mugrpo.disk.run_dir import RunDir
from tests.chaos.processes import MARK, Gone, Process, cpu_seconds, marked, wait_until_gone
from tests.runs import Ended, Started, start

_CLOCK = Path(__file__).parent / "clock"
_GONE = 90.0  # seconds after which a process that is still there has been left behind


class Attempt:
    """A command at work. `folder` has its temporary folder and the offset of its clock."""

    def __init__(self, words: Sequence[str], run_dir: Path, folder: Path, mark: str) -> None:
        self.words, self.run_dir, self.mark = words, run_dir, mark
        self.clock, self._temporary = folder / "clock", folder / "tmp"
        self.signals: set[int] = set()  # that the command itself got
        self.disturbers: list[Started] = []
        self.wrong: list[str] = []  # of what faults looked at themselves
        self._temporary.mkdir(parents=True, exist_ok=True)
        self._started = self._start(words)

    def _start(self, words: Sequence[str]) -> Started:
        environment = {
            MARK: self.mark,
            "TMPDIR": str(self._temporary),
            "MUGRPO_CLOCK": str(self.clock),
            "PYTHONPATH": os.pathsep.join([str(_CLOCK), os.environ.get("PYTHONPATH", "")]),
        }
        return start(*words, first=partial(_prepare, environment))

    @property
    def pid(self) -> int:
        return self._started.pid

    def runs(self) -> bool:
        """Return whether the command itself has not ended."""
        return self._started.process.exitcode is None

    def processes(self) -> list[Process]:
        """Return the living processes that the command has started."""
        return marked(self.mark)

    def worked(self, seconds: float, deadline: float) -> bool:
        """Wait until it has taken so much CPU time. Return whether it still runs then.

        CPU time is less subject to other work on the machine than the clock is.
        """
        end = time.monotonic() + deadline
        while cpu_seconds(self.pid) < seconds and self.runs() and time.monotonic() < end:
            time.sleep(0.01)
        return self.runs()

    def send(self, pid: int, number: signal.Signals) -> bool:
        """Send a signal to one of its processes. Return whether it was there to get it."""
        if pid == self.pid:
            if not self.runs():
                return False
            self.signals.add(number)
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def disturb(self, how: str) -> None:
        """Start another command on the same run."""
        commands = {
            "again": self.words,
            "evaluate": ("evaluate", str(self.run_dir), "--update", "0"),
            "report": ("report", str(self.run_dir), "--out", str(self.clock.with_name("r.html"))),
        }
        words = commands.get(how, (how, str(self.run_dir)))
        self.disturbers.append(self._start(words))

    def refuses(self, sentence: str) -> None:
        """Try the killed command's run when all is gone. If it has results, it must be refused."""
        self._started.process.join()
        wait_until_gone(self.mark, _GONE)
        untouched = RunDir(self.run_dir).is_untouched()
        ended = self._start(("check", *self.words[1:])).end(_GONE)
        if not untouched and (ended.status != 2 or sentence not in ended.err):
            self.wrong.append(f"not refused with {sentence!r}: {ended}")

    def end(self, deadline: float) -> tuple[Ended, list[Ended], Gone]:
        """Wait for the end. Return how it and its disturbers ended, and when all was gone.

        Raises TimeoutError, with everything killed, if the command runs for `deadline` seconds.
        """
        try:
            ended = self._started.end(deadline)
            gone = Gone(0.0, 0.0, []) if self.disturbers else wait_until_gone(self.mark, _GONE)
            others = [disturber.end(deadline) for disturber in self.disturbers]
            if others:
                gone = wait_until_gone(self.mark, _GONE)
        finally:
            for process in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        return ended, others, gone

    def temporary_files(self) -> list[str]:
        """Return what is in the temporary folder."""
        return sorted(path.name for path in self._temporary.iterdir())


def _prepare(environment: dict[str, str]) -> None:
    """Make the environment that of a fresh command, with a clock that may jump."""
    os.setsid()
    os.environ.update(environment)
    tempfile.tempdir = None
    random.seed()
    from tests.chaos.clock import sitecustomize  # noqa: F401 - this process began without it
