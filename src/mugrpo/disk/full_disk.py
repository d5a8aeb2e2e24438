"""Report a full disk in one sentence, and leave nothing of what did not fit."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mugrpo.disk.errors import RunStopped


@contextmanager
def full_disk_explained(path: Path) -> Iterator[None]:
    """Raise RunStopped, with a one-sentence message, if the disk fills up in the block.

    What this process has written of `path` so far is removed. Libraries such as safetensors
    wrap the system's error in their own, so the error's text is checked too.
    """
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        if number not in (errno.ENOSPC, errno.EDQUOT) and "No space left" not in str(error):
            raise
        temporary = unfinished(path)
        needed = _size(temporary)
        remove(temporary)
        folder = next(parent for parent in path.parents if parent.exists())
        free = shutil.disk_usage(folder).free
        raise RunStopped(
            f"the disk is full: {path} needs more than the {needed:,} bytes already written, "
            f"and {free:,} bytes are free now; make room"
        ) from error


def unfinished(path: Path, pid: int | None = None) -> Path:
    """Return where process `pid`, by default this one, writes `path` before publishing it."""
    return path.with_name(f"{path.name}.tmp.{pid or os.getpid()}")


def remove(path: Path) -> None:
    """Remove a file or folder, if it exists."""
    folder = path.is_dir() and not path.is_symlink()
    shutil.rmtree(path) if folder else path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
