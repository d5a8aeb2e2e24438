"""A trial: a run of a random kind, up to three faults at random moments, and what came of it.

A trial's number and the seed decide everything about it but the machine's speed: the kind, the
faults, whom they strike, and the moments, as shares of the CPU time of an uninterrupted run.
"""

import random
import shutil
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.attempt import Attempt
from tests.chaos.compare import differences, own_faults
from tests.chaos.disk import SmallDisk, mountable, small_disk
from tests.chaos.faults import FAULTS, Strike, Struck, applicable, needs_disk, refused_by_lock
from tests.chaos.kinds import KINDS, begin
from tests.chaos.processes import abandoned, cpu_seconds, shared_memory
from tests.runs import Ended

MOST_FAULTS = 3
LIMIT = 2.0  # seconds within which ranks must be gone after the process that drives them
_FINISHED, _REFUSED, _STOPPED, _AT_ONCE = 0, 2, 3, 130  # exit statuses; by a second signal


@dataclass(frozen=True)
class Plan:
    """What a trial does."""

    kind: str
    strikes: tuple[Strike, ...]


@dataclass
class Outcome:
    """What came of a trial. Every list is empty if all went well."""

    seed: int
    trial: int
    kind: str
    struck: list[str] = field(default_factory=list)  # names of the faults that came about
    skipped: list[str] = field(default_factory=list)  # those that need a mount, without root
    differences: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)  # ends that no fault explains
    ranks_gone: list[float] = field(default_factory=list)  # seconds after their driver
    seconds: float = 0.0

    @property
    def late(self) -> list[float]:
        """Return the times of ranks that stayed for too long."""
        return [seconds for seconds in self.ranks_gone if seconds > LIMIT]

    @property
    def good(self) -> bool:
        return not (self.differences or self.leftovers or self.ends or self.late)

    def record(self) -> dict[str, Any]:
        """Return the outcome as a line of the results file."""
        return asdict(self)


def plan(seed: int, number: int) -> Plan:
    """Return the plan of a trial, which depends on nothing but the arguments."""
    chance = random.Random(f"{seed} {number}")
    kind = chance.choice(list(KINDS))
    weights = applicable(KINDS[kind].roles)
    names = chance.choices(list(weights), list(weights.values()), k=chance.randint(1, MOST_FAULTS))
    draws = ((name, chance.random(), chance.random(), chance.random()) for name in names)
    return Plan(kind, tuple(Strike(*draw) for draw in draws))


@dataclass(frozen=True)
class Reference:
    """An uninterrupted run: its folder, and the CPU seconds that it took."""

    folder: Path
    cpu: float


class Chaos:
    """Trials in one folder, which keeps the uninterrupted run of each kind."""

    def __init__(self, folder: Path, *, pause: float = 60.0, deadline: float = 900.0) -> None:
        """`pause` is the length of a stop or a hang, and `deadline` that of a command, in seconds.

        A command that takes longer hangs.
        """
        self._folder, self._pause, self._deadline = folder, pause, deadline
        self._references: dict[str, Reference] = {}

    def reference(self, name: str) -> Reference:
        """Return the uninterrupted run of a kind. Raises RuntimeError if it does not succeed."""
        if name not in self._references:
            if KINDS[name].of:
                self.reference(KINDS[name].of)
            run_dir = self._folder / "finished" / name
            words = begin(name, self._folder, run_dir)
            attempt = Attempt(words, run_dir, self._folder / "uninterrupted" / name, f"ref {name}")
            cpu = 0.0
            while attempt.runs():
                cpu = max(cpu, cpu_seconds(attempt.pid))
                time.sleep(0.02)
            ended, _, gone = attempt.end(self._deadline)
            if ended.status != _FINISHED or gone.left or attempt.temporary_files():
                raise RuntimeError(f"{name}, uninterrupted: {ended} {gone}")
            self._references[name] = Reference(run_dir, cpu)
        return self._references[name]

    def run(self, seed: int, number: int) -> Outcome:
        """Do a trial. Its folder stays if something is wrong."""
        planned, began = plan(seed, number), time.monotonic()
        reference = self.reference(planned.kind)
        outcome = Outcome(seed, number, planned.kind)
        folder = self._folder / f"trial-{seed}-{number:04d}"
        shutil.rmtree(folder, ignore_errors=True)
        with ExitStack() as stack:
            disk = None
            if needs_disk(planned.strikes) and mountable():
                disk = stack.enter_context(small_disk(folder / "disk"))
            run_dir = (disk.folder if disk else folder) / "run"
            before = shared_memory()
            trial = _Trial(self, planned, outcome, folder, run_dir, disk)
            trial.go(begin(planned.kind, self._folder, run_dir), reference.cpu)
            if not outcome.ends:
                kind = KINDS[planned.kind]
                outcome.differences += differences(
                    run_dir, reference.folder, in_order=kind.in_order, without=kind.varying
                )
                outcome.differences += own_faults(run_dir)
            leftovers = abandoned(shared_memory() - before)
            outcome.leftovers += [f"shared memory {name}" for name in leftovers]
            if disk and not outcome.good:
                shutil.copytree(run_dir, folder / "run")
        outcome.seconds = time.monotonic() - began
        if outcome.good:
            shutil.rmtree(folder)
        return outcome

    @property
    def pause(self) -> float:
        return self._pause

    @property
    def deadline(self) -> float:
        return self._deadline


@dataclass
class _Trial:
    chaos: Chaos
    plan: Plan
    outcome: Outcome
    folder: Path
    run_dir: Path
    disk: SmallDisk | None
    attempts: int = 0

    def go(self, words: tuple[str, ...], cpu: float) -> None:
        """Start the command, strike it, and start it again until all faults have had their turn.

        Then let it finish.
        """
        waiting = list(self.plan.strikes)
        while not self.outcome.ends:
            attempt = self._start(words)
            struck: list[str] = []
            while waiting and attempt.worked(waiting[0].moment * cpu, self.chaos.deadline):
                strike = waiting.pop(0)
                if FAULTS[strike.name][1] == "disk" and not self.disk:
                    self.outcome.skipped.append(strike.name)
                elif FAULTS[strike.name][2](strike, Struck(attempt, self.disk, self.chaos.pause)):
                    struck.append(strike.name)
            if self._ended(attempt, struck):
                return

    def _start(self, words: tuple[str, ...]) -> Attempt:
        self.attempts += 1
        mark = f"{self.folder} {self.attempts}"
        return Attempt(words, self.run_dir, self.folder / "work", mark)

    def _ended(self, attempt: Attempt, struck: list[str]) -> bool:
        """Note how an attempt ended. Return whether the run is finished."""
        outcome = self.outcome
        outcome.struck += struck
        try:
            ended, others, gone = attempt.end(self.chaos.deadline)
        except TimeoutError as error:
            outcome.ends.append(f"after {struck}: {error}")
            return True
        if self.disk:
            self.disk.empty()
        outcome.leftovers += [f"process {process}" for process in gone.left]
        if "rank" in KINDS[self.plan.kind].roles:
            outcome.ranks_gone.append(round(gone.ranks, 2))
        outcome.ends += [
            f"another command: {other}" for other in others if not _explained(other, set(), struck)
        ]
        outcome.ends += attempt.wrong
        if not _explained(ended, attempt.signals, struck):
            outcome.ends.append(f"after {struck}: {ended}")
        if ended.status == _FINISHED:
            names = attempt.temporary_files()
            outcome.leftovers += [f"temporary {name}" for name in names]
        return ended.status == _FINISHED


def _explained(ended: Ended, signals: set[int], struck: list[str]) -> bool:
    """Return whether a command ended as it may: with success, or because of what `struck` it.

    A run that has no results yet does not begin on a full disk.
    """
    if ended.status == _FINISHED:
        return True
    if -ended.status in signals:
        return True
    if ended.status == _AT_ONCE and struck.count("terminate run") > 1:
        return True
    sentence = "Traceback" not in ended.err
    if ended.status == _REFUSED:
        full = "full disk" in struck and "make room" in ended.err
        return (refused_by_lock(ended.err) or full) and sentence
    return ended.status == _STOPPED and bool(struck) and sentence
