"""Patience with a folder that other processes write into, perhaps over a network."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mugrpo.disk.errors import RunStopped

_NAMED = 60.0  # seconds without progress after which a wait is named
_OVER = 1800.0  # and after which it ends
_LOOK = 1.0  # seconds between two looks at a folder, which a network file system answers slowly


class Patience:
    """A wait for `awaited`, which others write into `folder`; `look` is called while it lasts.

    Progress is any change of the files in the folder.
    """

    def __init__(self, folder: Path, awaited: str, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._awaited = awaited
        self._say = say
        self._state: object = None
        self._since = time.monotonic()
        self._next = 0.0
        self._named = False

    def look(self, *, endless: bool = False) -> None:
        """Say what is awaited after a minute without progress.

        Raises RunStopped after half an hour without progress, unless the wait is `endless`.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _LOOK
        if (state := _state(self._folder)) != self._state:
            self._state, self._since, self._named = state, now, False
        waited = now - self._since
        text = f"{self._awaited}: nothing has changed in {self._folder} for {waited:.0f} seconds"
        if waited >= _OVER and not endless:
            raise RunStopped(f"{text}; all machines of the run must share this folder")
        if waited >= _NAMED and not self._named:
            self._named = True
            self._say(f"waiting for {text}")


def _state(folder: Path) -> object:
    """Return the names, sizes and times of the folder's files: a write or removal shows in them."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:  # there is no folder yet
        return None
    stats = []
    for path in paths:
        with suppress(OSError):  # removed meanwhile
            stat = path.stat()
            stats.append((path.name, stat.st_size, stat.st_mtime_ns))
    return stats
