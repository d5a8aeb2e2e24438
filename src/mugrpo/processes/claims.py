"""Claims: which process is at work on which shard, on any machine that sees the folder.

A claim is a file that its holder makes with O_EXCL, and touches now and then:

    rollouts/shard-00003.claim-0     {"host": "n1", "pid": 812, "job": "4711", ...}

One whose holder is lost is taken over by making the next file, `shard-00003.claim-1`. Only one
process can make that, and nobody removes or replaces what another one may still hold.

A claim only saves work. All that publish a shard publish the same bytes, so a process that was
stopped for an hour, and whose claim is another's by then, may go on and do no harm.
"""

import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from mugrpo.disk.publishing import LOST_AFTER, alive, machine, remove, unfinished
from mugrpo.processes.launcher import job_id, job_is_gone, restarts

_BEATS = 6  # in LOST_AFTER
_NAME = re.compile(r"(.+)\.claim-(\d+)")


@dataclass(frozen=True)
class Claim:
    """A claim as a file tells of it. `age` is the seconds since its holder's last sign of life."""

    name: str  # of what is claimed
    attempt: int  # from 0: how often it was taken over
    path: Path
    age: float
    said: Mapping[str, Any]

    def lost(self) -> bool:
        """Return whether its holder is gone, as far as can be known from here."""
        if self.age > LOST_AFTER:
            return True
        if self.said.get("machine") == machine():
            return not alive(self.said["pid"]) or self._another_process()
        if not (job := self.said.get("job")):
            return False
        if job == job_id():  # ours, before it was requeued
            return bool(self.said["restarts"] < restarts())
        return job_is_gone(job)

    def holder(self) -> str:
        """Return who has it, for people."""
        job = f", job {self.said['job']}" if self.said.get("job") else ""
        return f"{self.said.get('host', 'a process')} (pid {self.said.get('pid', '?')}{job})"

    def _another_process(self) -> bool:
        return bool(self.said["started"] != _started(self.said["pid"]))


class Claims:
    """The claims of this process in a folder. Close them at the end, also after an error."""

    def __init__(self, folder: Path, **about: Any) -> None:
        """Make the folder. What is claimed tells who has it, and `about`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._about = folder, about
        self._held: dict[str, int] = {}  # name -> attempt
        self._ending = Event()
        self._thread: Thread | None = None

    def take(self, name: str) -> bool:
        """Claim `name`. Return False if another process has it and goes on."""
        attempt = 0
        while not self._made(name, attempt):
            found = claim(self._folder / f"{name}.claim-{attempt}", now(self._folder))
            newer = (self._folder / f"{name}.claim-{attempt + 1}").exists()
            if found and not newer and not found.lost():
                return False
            attempt = attempt + 1 if found else 0  # it was given back just now
        self._held[name] = attempt
        if self._thread is None:
            self._thread = Thread(target=self._beat, daemon=True)
            self._thread.start()
        return True

    def give_back(self, name: str) -> None:
        """Remove the claim on `name`, and those that it was taken over from."""
        for attempt in range(self._held.pop(name) + 1):
            remove(self._folder / f"{name}.claim-{attempt}")

    def close(self) -> None:
        """Give back all claims."""
        self._ending.set()
        for name in list(self._held):
            self.give_back(name)

    def _made(self, name: str, attempt: int) -> bool:
        path = self._folder / f"{name}.claim-{attempt}"
        said = {
            "host": socket.gethostname(),
            "machine": machine(),
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "job": job_id(),
            "restarts": restarts(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            **self._about,
        }
        try:
            with open(path, "x") as file:
                json.dump(said, file)
        except FileExistsError:
            return False
        return True

    def _beat(self) -> None:
        while not self._ending.wait(LOST_AFTER / _BEATS):
            for name, attempt in list(self._held.items()):
                with suppress(OSError):  # the disk may be away for a while
                    os.utime(self._folder / f"{name}.claim-{attempt}")


def claims_in(folder: Path) -> Iterator[Claim]:
    """Yield the newest claim on each name in `folder`."""
    newest: dict[str, int] = {}
    for found in map(_NAME.fullmatch, os.listdir(folder) if folder.is_dir() else ()):
        if found:
            newest[found[1]] = max(int(found[2]), newest.get(found[1], 0))
    time_there = now(folder) if newest else 0.0
    for name, attempt in sorted(newest.items()):
        if found_claim := claim(folder / f"{name}.claim-{attempt}", time_there):
            yield found_claim


def forget_claims(folder: Path) -> None:
    """Remove all claims in a folder in which nothing is left to make."""
    for path in folder.glob("*.claim-*"):
        remove(path)


def claim(path: Path, time_there: float) -> Claim | None:
    """Return the claim in a file, None if it is gone. `time_there` is the folder's `now`."""
    try:
        age, text = time_there - path.stat().st_mtime, path.read_text()
    except FileNotFoundError:
        return None
    said: Mapping[str, Any] = {}
    with suppress(ValueError):  # it is being written
        said = json.loads(text)
    found = _NAME.fullmatch(path.name)
    assert found
    return Claim(found[1], int(found[2]), path, age, said if isinstance(said, dict) else {})


def now(folder: Path) -> float:
    """Return the time of the file system, whose clock stamps all claims. Hosts' clocks differ."""
    probe = unfinished(folder / "now")
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:  # it can only be read
        return time.time()
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def _started(pid: int) -> str:
    """Return when a process of this machine started, so that its id is not taken for another's."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
