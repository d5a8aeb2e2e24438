"""What may be opened: regular files, and of a run only its own."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from mugrpo.disk.errors import UsageError

_NEVER_READ = ("handed_over", "tensorboard", "trackio", "wandb")  # wandb links to its own logs


def regular(path: Path) -> Path:
    """Return `path`. Raises UsageError if it is a pipe or a device, whose reading may never end.

    A directory, or nothing, is what opening it says.
    """
    if os.path.lexists(path) and not (path.is_file() or path.is_dir()) and path.exists():
        raise UsageError(f"{path} is not a regular file but a pipe, socket or device; name a file")
    return path


def refuse_links_out(run: Path) -> None:
    """Raise UsageError if something in the folder `run` is a link out of it, or a device or pipe.

    Otherwise, files that are not the run's could be read, or overwritten. The runs of a bakeoff may
    link to the run that they are part of. Folders that no command reads are not looked into.
    """
    root = run.resolve()
    whole = root.parents[2] if root.parent.parent.name == "bakeoff" else root
    for folder, folders, files in os.walk(root):
        for path in (Path(folder, name) for name in (*folders, *files)):
            with suppress(FileNotFoundError):  # removed meanwhile
                _refuse(path, whole)
        if Path(folder) == root:
            folders[:] = [name for name in folders if name not in _NEVER_READ]


def _refuse(path: Path, whole: Path) -> None:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode) and not Path(os.path.realpath(path)).is_relative_to(whole):
        raise UsageError(
            f"{path} is a link out of the run; put what it leads to in its place, or remove it"
        )
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        raise UsageError(f"{path} is neither a file nor a folder; remove it")
