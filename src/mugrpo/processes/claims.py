"""Claims: which process is at work on which shard, on any machine that sees the folder.

A claim is a file that its holder makes with O_EXCL, and touches now and then:

    rollouts/shard-00003.claim-0     {"host": "n1", "pid": 812, "job": "4711", ...}

One whose holder is lost is taken over by making the next file, `shard-00003.claim-1`. Only one
process can make that, and each removes only its own. A process that finds a later claim than its
own has lost the shard and drops its work: with an engine that is not exact the bytes would differ.
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

from mugrpo.disk.publishing import (
    LOST_AFTER,
    alive,
    full_disk_explained,
    machine,
    remove,
    time_of,
)
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
        if self.said.get("job") and self.said["job"] == job_id():  # before it was requeued
            return bool(self.said["restarts"] < restarts())
        # A scheduler may not know the jobs of another one, so who gives signs of life is not asked
        # for; nor is it asked about each of a thousand claims.
        if not (job := self.said.get("job")) or self.age < 2 * LOST_AFTER / _BEATS:
            return False
        return job_is_gone(job)

    def holder(self) -> str:
        """Return who has it, for people."""
        job = f", job {self.said['job']}" if self.said.get("job") else ""
        return f"{self.said.get('host', 'a process')} (pid {self.said.get('pid', '?')}{job})"

    def _another_process(self) -> bool:
        known = (self.said["started"], _started(self.said["pid"]))
        return all(known) and known[0] != known[1]


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
        while True:
            made, following = self._made(name, attempt), self._path(name, attempt + 1).exists()
            if made and not following:
                break
            if made:  # the claim before it was given back by one that came back
                remove(self._path(name, attempt))
            elif not following:
                found = claim(self._path(name, attempt), time_of(self._folder))
                if found and not found.lost():
                    return False
                if found is None:  # it was given back just now
                    attempt = -1
            attempt += 1
        self._held[name] = attempt
        if self._thread is None:
            self._thread = Thread(target=self._beat, daemon=True)
            self._thread.start()
        return True

    def holds(self, name: str) -> bool:
        """Return whether `name` is claimed by this process still, and not taken over."""
        attempt = self._held[name]
        return not self._path(name, attempt + 1).exists() and self._path(name, attempt).exists()

    def give_back(self, name: str) -> None:
        """Remove the claim on `name`. Those that were lost stay, as their holders may come back."""
        remove(self._path(name, self._held.pop(name)))

    def close(self) -> None:
        """Give back all claims."""
        self._ending.set()
        for name in list(self._held):
            self.give_back(name)

    def _made(self, name: str, attempt: int) -> bool:
        path = self._path(name, attempt)
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
        with full_disk_explained(path):
            try:
                file = open(path, "x")  # noqa: SIM115
            except FileExistsError:
                return False
            try:
                with file:
                    json.dump(said, file)
            except OSError:
                remove(path)
                raise
        return True

    def _path(self, name: str, attempt: int) -> Path:
        return self._folder / f"{name}.claim-{attempt}"

    def _beat(self) -> None:
        while not self._ending.wait(LOST_AFTER / _BEATS):
            for name, attempt in list(self._held.items()):
                with suppress(OSError):  # the disk may be away for a while
                    os.utime(self._path(name, attempt))


def claims_in(folder: Path) -> Iterator[Claim]:
    """Yield the newest claim on each name in `folder`."""
    time_there = time_of(folder)  # first: it makes the client look at the folder anew
    newest: dict[str, int] = {}
    for found in map(_NAME.fullmatch, os.listdir(folder) if folder.is_dir() else ()):
        if found:
            newest[found[1]] = max(int(found[2]), newest.get(found[1], 0))
    for name, attempt in sorted(newest.items()):
        if found_claim := claim(folder / f"{name}.claim-{attempt}", time_there):
            yield found_claim


def forget_claims(folder: Path) -> None:
    """Remove all claims in a folder in which nothing is left to make."""
    for path in folder.glob("*.claim-*"):
        remove(path)


def claim(path: Path, time_there: float) -> Claim | None:
    """Return the claim in a file, None if it is gone. `time_there` is `time_of` its folder."""
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


def _started(pid: int) -> str:
    """Return when a process of this machine started, so that its id is not taken for another's."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
