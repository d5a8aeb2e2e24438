"""Publish files and folders atomically.

To publish `NAME` is to write `NAME.tmp.PID-MACHINE`, fsync it, rename it and fsync its folder. So a
path without `.tmp.` in its name is complete. A small JSON file of a run carries its own sha256, and
a folder that is sealed has those of its files. They find accidents. They are no signature.

Each `failpoint` is a place where a test can kill a run.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from mugrpo.disk.errors import RunStopped, UsageError

SUMS = "sha256.json"
# Seconds without a sign of life after which a process on another machine counts as lost. NFS may
# show a file's time up to a minute late.
LOST_AFTER = 120.0
_UNFINISHED = re.compile(r"\.tmp\.(\d+)-([0-9a-f]{8})$")

watchers: list[Callable[[str, str], None]] = []  # with which a test can kill a run; usually none

_durable = ContextVar("durable", default=True)


def failpoint(place: str, what: object = "") -> None:
    """Tell the watchers that the process is at `place`, working on `what` (a path, for example)."""
    for watch in watchers:
        watch(place, str(what))


@contextmanager
def without_fsync() -> Iterator[None]:
    """Skip fsync in the block: what this thread publishes survives a killed process.

    A power failure may lose it.
    """
    before = _durable.set(False)
    try:
        yield
    finally:
        _durable.reset(before)


@cache
def machine() -> str:
    """Return eight digits that tell apart machines, their boots, and containers on one of them.

    A process id means something only among processes for which this is the same.
    """
    parts = [socket.gethostname()]
    with suppress(OSError):  # not Linux
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def writer() -> str:
    """Return what names this process among all that see a folder: "PID-MACHINE"."""
    return f"{os.getpid()}-{machine()}"


def alive(pid: int) -> bool:
    """Return whether a process of this machine runs. One that only waits to be reaped does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's, or a system without /proc
        return True
    return state not in "ZX"


def remove_unfinished(root: Path) -> list[Path]:
    """Remove files and folders that killed processes left unpublished. Return their paths.

    The caller must hold the lock of `root`. Parts publish shards without it: what they may be
    writing stays.
    """
    removed = []
    for path in sorted(root.rglob("*.tmp.*")):
        found = _UNFINISHED.search(path.name)
        if not (found and path.exists()):  # not inside a folder just removed
            continue
        shared = path.relative_to(root).parts[0] in ("stages", "parts")
        if shared and _goes_on(path, *found.groups()):
            continue
        remove(path)
        removed.append(path)
    return removed


def _goes_on(path: Path, pid: str, where: str) -> bool:
    """Return whether the process that began to write `path` may still do so."""
    if where == machine():
        return int(pid) != os.getpid() and alive(int(pid))
    with suppress(FileNotFoundError):  # it has published it
        return time_of(path.parent) - path.stat().st_mtime < LOST_AFTER
    return True


def time_of(folder: Path) -> float:
    """Return the time of a folder's file system, which stamps its files. Hosts' clocks differ."""
    probe = unfinished(folder / "now")
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:  # it can only be read
        return time.time()
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below `folder`. One that vanishes meanwhile has none."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def set_aside(path: Path, *, copy: bool = False) -> None:
    """Rename a bad file or folder to a name that nothing reads: `NAME.bad`, or `NAME.bad.2`, ...

    If it is going to be replaced, `copy` it: a rename would leave a moment without the file, in
    which a kill loses what it still tells.
    """
    aside, number = path.with_name(f"{path.name}.bad"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.bad.{number}")
    if copy and path.is_file():
        shutil.copyfile(path, aside)
    elif os.path.lexists(path):
        os.rename(path, aside)


@contextmanager
def publish_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write; it becomes `path` in one rename if the block succeeds.

    Raises RunStopped if the disk is full.
    """
    temporary = unfinished(path)
    with full_disk_explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            if _durable.get():
                os.fsync(file.fileno())
        failpoint("before a publish", path)
        os.replace(temporary, path)
        failpoint("after a publish", path)
        if _durable.get():
            fsync(path.parent)


@contextmanager
def publish_folder(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield an empty folder to fill; it becomes `path` in one rename if the block succeeds.

    A folder that is already at `path` is replaced, or kept if `replace` is false. Raises RunStopped
    if the disk is full, and UsageError for a folder that must be kept.
    """
    temporary = unfinished(path)
    try:
        with full_disk_explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
            yield temporary
            for entry in [*temporary.rglob("*"), temporary] if _durable.get() else ():
                fsync(entry)
            failpoint("before a publish", path)
            if path.exists() and not replace:
                raise UsageError(f"{path} exists already; name a new folder")
            if path.exists():
                shutil.rmtree(path)
            os.rename(temporary, path)
            failpoint("after a publish", path)
            if _durable.get():
                fsync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def seal_folder(folder: Path, known: Mapping[str, str] = MappingProxyType({})) -> None:
    """Store the checksums of a folder's files in it. Call this before publishing the folder.

    `known` has checksums that need not be computed, by the files' names.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [str(file.relative_to(folder)) for file in files]
    unknown = [name for name in names if name not in known]
    found = {**known, **_sums(folder, unknown)}
    sums = {name: found[name] for name in names}
    (folder / SUMS).write_text(json.dumps(sums, indent=1) + "\n")
    _intact.append((_state([*files, folder / SUMS]), 0, 1))


def sealed_folder_fault(folder: Path, part: int = 0, parts: int = 1) -> str | None:
    """Return what is wrong with a sealed folder, or None if its files match their checksums.

    Files that this process has written or checked, and that nobody has changed since, are not read
    again. Of several `parts`, only the files of this one are read.
    """
    try:
        sums = dict(json.loads((folder / SUMS).read_text()))
    except PermissionError:
        raise  # nothing may be wrong with it
    except (OSError, ValueError, TypeError):
        sums = {}
    if not sums:
        return f"has no readable {SUMS}"
    files = [folder / name for name in sums]
    for name, file in zip(sums, files, strict=True):
        if not file.is_file():
            return f"lacks {name}"
    state = _state([*files, folder / SUMS])
    if (state, 0, 1) in _intact or (state, part, parts) in _intact:
        return None
    names = list(sums)[part::parts]
    for name, found in _sums(folder, names).items():
        if found != sums[name]:
            return f"has a {name} that does not match its checksum"
    _intact.append((state, part, parts))
    return None


_State = tuple[tuple[int, ...], ...]

# (state, part, parts) of the sealed folders last seen with right checksums: of all, it would grow
# with a run.
_intact: deque[tuple[_State, int, int]] = deque(maxlen=64)


def _state(files: Iterable[Path]) -> _State:
    """Return what changes if a file is written again: not its name, which publishing changes."""
    stats = (file.stat() for file in files)
    return tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in stats)


def _sums(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return name -> checksum of files in `folder`, computed side by side."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(names, pool.map(lambda name: sha256_of(folder / name), names), strict=True))


def publish_json(path: Path, value: Any) -> None:
    data = json.dumps(value, indent=1).encode() + b"\n"
    with publish_file(path) as file:
        file.write(data)


def publish_once(path: Path, value: Any) -> None:
    """Publish `value` as JSON, unless there is a file at `path`, also if others do so at once."""
    if path.exists():
        return
    mine = unfinished(path)
    with full_disk_explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(mine, "w") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(mine, path)
        except FileExistsError:
            pass
        except OSError:  # the disk has no hard links
            os.replace(mine, path)
        mine.unlink(missing_ok=True)
        fsync(path.parent)


def with_checksum(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return `value` with a checksum of its content, which layout does not change, as "sha256"."""
    text = json.dumps(value, separators=(",", ":"))
    return {**value, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def without_checksum(value: Any) -> dict[str, Any]:
    """Return what `with_checksum` was given. Raises ValueError if that was something else."""
    if not isinstance(value, dict) or "sha256" not in value:
        raise ValueError("it has no sha256")
    rest = {name: part for name, part in value.items() if name != "sha256"}
    if with_checksum(rest)["sha256"] != value["sha256"]:
        raise ValueError("its sha256 does not match its content")
    return rest


def read_checked(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file `with_checksum`. Raises RunStopped if it is damaged."""
    try:
        return without_checksum(json.loads(path.read_bytes()))
    except PermissionError:
        raise  # nothing may be wrong with it
    except (OSError, ValueError, RecursionError) as error:
        raise RunStopped(
            f"{path} is damaged ({error}); `mugrpo repair RUN` sets it aside or restores it"
        ) from None


def fsync(path: Path) -> None:
    """Make a file's content, or a folder's list of names, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
            f"the disk is full: {path} needs more than {needed:,} bytes, "
            f"and {free:,} bytes are free now; make room"
        ) from error


def unfinished(path: Path, by: str | None = None) -> Path:
    """Return the temporary path of `path` for the process `by`, by default this one."""
    return path.with_name(f"{path.name}.tmp.{by or writer()}")


def remove(path: Path) -> None:
    """Remove a file or folder, if it exists."""
    folder = path.is_dir() and not path.is_symlink()
    shutil.rmtree(path) if folder else path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
