"""Faults: what strikes a run at a random moment, and how the run may end because of it."""

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.attempt import Attempt
from tests.chaos.disk import SmallDisk
from tests.chaos.kinds import SUITE_DATA
from tests.chaos.processes import Process
from tests.waiting import alive

_REFUSALS = (" is locked by ", "was not begun by you on this machine")  # of a second command
_CLOCK_JUMPS = (-86400.0, -90.0, -5.0, 90.0, 86400.0, 10 * 365 * 86400.0)  # seconds
_WRITERS = ("again", "repair", "evaluate", "report")


@dataclass(frozen=True)
class Strike:
    """A planned fault. The numbers are uniform over [0, 1): when, whom, how."""

    name: str
    moment: float
    choice: float
    amount: float


@dataclass
class Struck:
    """What a fault strikes: a command at work, and the disk that its folder is on, if it is small.

    `pause` is the number of seconds that a stop or a hang lasts.
    """

    attempt: Attempt
    disk: SmallDisk | None
    pause: float


Fault = Callable[[Strike, Struck], bool]  # returns whether it came about


def _signal(number: signal.Signals, role: str | None) -> Fault:
    """Return a fault that sends a signal to the run, to a process with `role`, or to "any"."""

    def strike(plan: Strike, struck: Struck) -> bool:
        victim = _victim(plan, struck.attempt, role)
        return victim is not None and struck.attempt.send(victim, number)

    return strike


def _kill_all(_plan: Strike, struck: Struck) -> bool:
    """Kill every process of the run, as a machine does that loses power."""
    attempt = struck.attempt
    for victim in [attempt.pid, *(process.pid for process in attempt.processes())]:
        attempt.send(victim, signal.SIGKILL)
    return True


def _stop(role: str | None) -> Fault:
    """Return a fault that stops a process for a while, as a debugger or a busy machine does."""

    def strike(plan: Strike, struck: Struck) -> bool:
        victim = _victim(plan, struck.attempt, role)
        if victim is None or not struck.attempt.send(victim, signal.SIGSTOP):
            return False
        _wait(struck.pause, [victim])
        struck.attempt.send(victim, signal.SIGCONT)
        return True

    return strike


def _full(plan: Strike, struck: Struck) -> bool:
    """Leave up to 6 MB of the disk free, less than a checkpoint takes, until the run has ended."""
    if struck.disk:
        struck.disk.fill(int(plan.amount * 6_000_000))
    return struck.disk is not None


def _hang(plan: Strike, struck: Struck) -> bool:
    """Let the run's folder hang for a while. Every other time, kill the run meanwhile."""
    if struck.disk:
        struck.disk.hang(struck.pause)
        time.sleep(struck.pause / 2)
        if plan.choice < 0.5:
            struck.attempt.send(struck.attempt.pid, signal.SIGKILL)
        struck.disk.thawed()
    return struck.disk is not None


def _clock(plan: Strike, struck: Struck) -> bool:
    """Let the wall clock jump forwards or backwards, by seconds or by years."""
    jump = _CLOCK_JUMPS[int(plan.choice * len(_CLOCK_JUMPS))]
    struck.attempt.clock.write_text(str(jump))
    return True


def _writer(plan: Strike, struck: Struck) -> bool:
    """Start another command on the same run: it must be refused, or do no harm."""
    struck.attempt.disturb(_WRITERS[int(plan.choice * len(_WRITERS))])
    return True


def _change_suite(_plan: Strike, struck: Struck) -> bool:
    """Kill the run and change its suite's problems: it is refused, with the file, until undone."""
    attempt = struck.attempt
    file = Path(attempt.words[1]).with_name(SUITE_DATA)
    before = file.read_bytes()
    attempt.send(attempt.pid, signal.SIGKILL)
    file.write_bytes(before + b"\n")
    try:
        attempt.refuses(f"a suite's file changed ({file})")
    finally:
        file.write_bytes(before)
    return True


# Name -> (weight, what the run needs, what happens). A stop and a hang last, so they are rarer.
FAULTS: dict[str, tuple[float, str, Fault]] = {
    "kill run": (6, "", _signal(signal.SIGKILL, None)),
    "kill all": (3, "", _kill_all),
    "kill engine": (4, "engine", _signal(signal.SIGKILL, "engine")),
    "kill rank": (4, "rank", _signal(signal.SIGKILL, "rank")),
    "kill reward worker": (4, "reward worker", _signal(signal.SIGKILL, "reward worker")),
    "kill any": (2, "any", _signal(signal.SIGKILL, "any")),
    "terminate run": (2, "", _signal(signal.SIGTERM, None)),
    "terminate any": (1, "any", _signal(signal.SIGTERM, "any")),
    "stop run": (0.3, "", _stop(None)),
    "stop any": (0.3, "any", _stop("any")),
    "full disk": (2, "disk", _full),
    "hang": (0.5, "disk", _hang),
    "clock": (1.5, "", _clock),
    "second writer": (1.5, "", _writer),
    "change suite": (4, "suite", _change_suite),
}


def applicable(roles: Iterable[str]) -> dict[str, float]:
    """Return the weights of the faults that can strike a run with processes of these roles."""
    there = {"", "disk", *roles, *(["any"] if {*roles} - {"suite"} else [])}
    return {name: weight for name, (weight, needs, _) in FAULTS.items() if needs in there}


def needs_disk(strikes: Iterable[Strike]) -> bool:
    return any(FAULTS[strike.name][1] == "disk" for strike in strikes)


def refused_by_lock(error: str) -> bool:
    """Return whether a command was refused as another one has the run, or is to approve it."""
    return any(refusal in error for refusal in _REFUSALS)


def _victim(plan: Strike, attempt: Attempt, role: str | None) -> int | None:
    """Return the process to strike, or None if the run ends before there is one."""
    if role is None:
        return attempt.pid

    def victims() -> list[Process]:
        return [p for p in attempt.processes() if role in ("any", p.role)]

    while not (there := victims()):
        if not attempt.runs():
            return None
        time.sleep(0.05)
    return there[int(plan.choice * len(there))].pid


def _wait(seconds: float, victims: list[int]) -> None:
    """Wait for `seconds`, or until the victims are gone."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(map(alive, victims)):
        time.sleep(0.05)
