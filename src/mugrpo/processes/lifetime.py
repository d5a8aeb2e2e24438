"""How the processes of a run start, stop and end with it. Nothing heavy is imported here."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from mugrpo.disk.errors import Interrupted
from mugrpo.processes.child import end_with
from mugrpo.processes.launcher import launched_ranks


def passed_on(**more: str) -> dict[str, str]:
    """Return the environment variables of a process that this one starts: its own, and `more`.

    `python -m` and `-c` look for modules in the working directory first. A clone or a received run
    that its user stands in may have a folder `mugrpo` or a `pip.py`, and the variable keeps Python,
    and all that it starts in turn, from running it.
    """
    return {**os.environ, "PYTHONSAFEPATH": "1", **more}


# Environment variable of a rank: the id of the process that started it, by which tests find ranks,
# and the descriptor of the lifeline between them, which the rank reads.
DRIVER = "MUGRPO_DRIVER"
_ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_GROWING = "expandable_segments"


def follows() -> bool:
    """Return whether this process is a rank that obeys a run, which it or a launcher started.

    Of the processes that a launcher starts, the first one is the run and starts the first rank.
    """
    if DRIVER in os.environ:
        return True
    launched = launched_ranks()
    return launched is not None and launched["RANK"] != "0"


def start_rank(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a rank, which ends with this process. Its output goes to LOG.log and LOG.err."""
    # Not PR_SET_PDEATHSIG: it would end a rank with the thread that started it.
    ours, theirs = socket.socketpair()
    ours.detach()  # it stays open for as long as this process lives
    with theirs, open(f"{log}.log", "ab") as out, open(f"{log}.err", "wb") as err:
        driver = {DRIVER: f"{os.getpid()} {theirs.fileno()}"}
        return subprocess.Popen(
            command,
            env=passed_on(**environment, **driver),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


def end_with_driver() -> None:
    """Arrange that this process, if it is a rank, ends with the process that started it.

    Call this before the imports of a rank, which take seconds.
    """
    if driver := os.environ.get(DRIVER):
        end_with(socket.socket(fileno=int(driver.split()[1])))


def let_segments_grow() -> None:
    """Let this process's allocator on a GPU grow its segments, unless the user has set it.

    Each micro-batch has another shape, and segments of fixed sizes leave gaps that none fits into.
    torch reads the setting when it is imported, and so do the processes that this one starts.
    """
    if not any(name in os.environ for name in _ALLOCATORS):
        os.environ[_ALLOCATORS[0]] = f"{_GROWING}:True"


def fixed_segments() -> dict[str, str]:
    """Return the environment of a process whose segments do not grow: vLLM's sleep mode needs it.

    vLLM looks at one of the variables only; with another one, it would fail later.
    """
    settings = {name: os.environ[name].split(",") for name in _ALLOCATORS if name in os.environ}
    return {
        name: ",".join(one for one in parts if not one.strip().startswith(_GROWING))
        for name, parts in settings.items()
    }


_SECOND_SIGNAL_STATUS = 130  # what a shell reports for a process ended by Ctrl-C


class StopFlag:
    """A flag that a signal sets and the run checks between units of work."""

    def __init__(self) -> None:
        self.signal_name: str | None = None

    def check(self) -> None:
        """Raise Interrupted if a signal has asked the run to stop."""
        if self.signal_name:
            raise Interrupted(f"stopped by {self.signal_name}")


@contextmanager
def stop_on_signals(*, patient: bool = False) -> Iterator[StopFlag]:
    """Within the block, a first SIGTERM or SIGINT sets the flag, a Ctrl-C after it exits at once.

    A second SIGTERM does nothing, as Slurm sends two when it preempts a job. Nor does a second
    Ctrl-C if `patient`: a rank may get the same signal from several senders.
    """
    flag = StopFlag()

    def handle(number: int, _frame: FrameType | None) -> None:
        if flag.signal_name and number == signal.SIGINT and not patient:
            os._exit(_SECOND_SIGNAL_STATUS)
        if number == signal.SIGINT and not patient:  # os.write, as a handler may interrupt a print
            os.write(2, b"\nstopping after this step; a second Ctrl-C quits at once\n")
        flag.signal_name = signal.Signals(number).name

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
