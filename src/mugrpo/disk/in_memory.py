"""A run's folder in memory, for models that engines on the same machine read once.

The disk may be slow, busy with a checkpoint, or elsewhere. The folder is removed when the run ends,
and after a kill when the run is opened again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from pathlib import Path

_SHM = Path("/dev/shm")  # Linux's file system in memory; other systems have none
_WORTH = 1 << 28  # bytes: less takes any disk a second or two
# The memory that must be free, as a multiple of what is written. After a model in bf16 has been
# handed over, its weights and moments move to the host's memory, which takes six times as much.
_FREE = 8


def memory_folder(root: Path) -> Path:
    """Return the folder in memory of the run at `root`, whether it exists or not."""
    name = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
    return _SHM / f"mugrpo-{os.getuid()}-{name}"


def with_room(root: Path, size: int) -> Path | None:
    """Return that folder, which only this user may enter, or None if `size` bytes have no room.

    It is None, too, if they are so few that a disk is as good.
    """
    folder = memory_folder(root)
    try:
        if size < _WORTH or size > shutil.disk_usage(_SHM).free or _FREE * size > _free_memory():
            return None
        folder.mkdir(0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return folder if ours else None  # everybody may make folders there


def clear_memory(root: Path) -> None:
    """Remove the folder in memory of the run at `root`, if there is one."""
    shutil.rmtree(memory_folder(root), ignore_errors=True)


def _free_memory() -> int:
    """Return the bytes of memory that are free on the machine and, if it has one, in the cgroup."""
    kilobytes = re.search(r"^MemAvailable: +(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert kilobytes
    free = int(kilobytes[1]) << 10
    own = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    group = Path("/sys/fs/cgroup") / (own[1] if own else "")
    try:
        limit, used = int((group / "memory.max").read_text()), (group / "memory.stat").read_text()
    except (OSError, ValueError):  # there is no such group, or its limit is "max"
        return free
    kept = sum(int(n) for n in re.findall(r"^(?:anon|shmem|kernel) (\d+)$", used, re.MULTILINE))
    return min(free, limit - kept)
