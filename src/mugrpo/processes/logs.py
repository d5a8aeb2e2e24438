"""Logs of the processes that a run starts, which may print any amount."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LONGEST = 64 << 20  # bytes of a log
_LOOK = 1.0  # seconds between looks


@contextmanager
def limited_logs(folder: Path) -> Iterator[None]:
    """Keep every log below `folder` under `LONGEST` bytes while the block lasts.

    A log that grows beyond that begins again with a line that says so. Its process notices nothing:
    it must append.
    """
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK):
            _cut(folder)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _cut(folder)


def _cut(folder: Path) -> None:
    for place, _, names in os.walk(folder):  # passes over folders that are removed meanwhile
        for path in (Path(place, name) for name in names if name.endswith((".log", ".err"))):
            with suppress(OSError):  # removed meanwhile, or not writable
                if (size := path.stat().st_size) > LONGEST:
                    os.truncate(path, 0)
                    with open(path, "ab") as file:
                        file.write(f"mugrpo removed {size} bytes of this log\n".encode())
