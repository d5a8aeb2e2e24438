"""Files that are written past the page cache, for bytes that nobody reads soon.

Through the cache, a page is allocated and copied to for each 4 KiB. That can take a core for longer
than the disk takes, and drops pages that somebody does read.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

_BUFFER = 8 * 2**20  # bytes written at once
_ALIGNED = 4096  # what disks ask of addresses and sizes


class Writer(Protocol):
    """A file that takes bytes from first to last."""

    def write(self, data: bytes | memoryview, /) -> object: ...


@contextmanager
def direct(path: Path) -> Iterator[Writer]:
    """Yield a new file at `path` for writing. If the file system has no such files, a plain one.

    Raises OSError as writing to a plain file does.
    """
    with open(path, "wb") as plain:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_DIRECT)
        except (OSError, AttributeError):  # not every file system and system has O_DIRECT
            yield plain
            return
        with open(descriptor, "wb", buffering=0) as file:
            writer = _Direct(file)
            yield writer
            writer.end()


class _Direct:
    """Collects bytes in an aligned buffer."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._buffer = memoryview(mmap.mmap(-1, _BUFFER))
        self._filled = self._size = 0

    def write(self, data: bytes | memoryview, /) -> None:
        rest = memoryview(data).cast("B")
        self._size += len(rest)
        while len(rest):
            part, rest = rest[: _BUFFER - self._filled], rest[_BUFFER - self._filled :]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if self._filled == _BUFFER:
                self._put(_BUFFER)

    def end(self) -> None:
        """Write what is left, with zeros up to the next aligned size, and cut these off."""
        aligned = -(-self._filled // _ALIGNED) * _ALIGNED
        self._buffer[self._filled : aligned] = bytes(aligned - self._filled)
        self._put(aligned)
        self._file.truncate(self._size)

    def _put(self, size: int) -> None:
        left = self._buffer[:size]
        while len(left):
            try:
                written = self._file.write(left)
            except OSError as error:  # alignment was not enough, or a full disk took a part
                if error.errno != errno.EINVAL or not self._through_the_cache():
                    raise
                continue
            left = left[written:]
        self._filled = 0

    def _through_the_cache(self) -> bool:
        """Write like any other program from here on. Return False if that was so before."""
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        return bool(flags & os.O_DIRECT)
