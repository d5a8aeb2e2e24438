"""A file system of 512 MB that can fill up or hang. It needs root, loop devices and mkfs.ext4."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SIZE = 512 << 20
_TOOLS = ("mkfs.ext4", "mount", "umount", "fsfreeze")


def mountable() -> bool:
    """Return whether this process may probably mount a file system."""
    return (
        os.geteuid() == 0
        and Path("/dev/loop-control").exists()
        and all(shutil.which(tool) for tool in _TOOLS)
    )


class SmallDisk:
    """A mounted file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"
        self._freezer: subprocess.Popen[bytes] | None = None

    def fill(self, spare: int) -> None:
        """Leave `spare` bytes free."""
        state = os.statvfs(self.folder)
        room = state.f_bavail * state.f_frsize - spare
        if room > 0:
            with open(self._filler, "wb") as file, suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, room)

    def empty(self) -> None:
        """Make room again."""
        self._filler.unlink(missing_ok=True)

    def hang(self, seconds: float) -> None:
        """Let everything that changes the file system wait for `seconds`, from now on.

        A process of its own ends the wait, even if this one is killed.
        """
        self.thawed()
        script = 'fsfreeze --freeze "$1" && sleep "$2"; fsfreeze --unfreeze "$1"'
        words = ["sh", "-c", script, "sh", str(self.folder), str(seconds)]
        self._freezer = subprocess.Popen(words, start_new_session=True)

    def thawed(self) -> None:
        """Wait until the file system hangs no more."""
        if self._freezer is not None:
            self._freezer.wait()
            self._freezer = None


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """Mount a file system at `folder`, which is created. Raises CalledProcessError if it fails."""
    image = folder.with_suffix(".img")
    folder.mkdir(parents=True)
    with open(image, "wb") as file:
        file.truncate(SIZE)
    # without a journal and blocks that are kept for root, all of it can be filled
    _run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image))
    _run("mount", "-o", "loop", str(image), str(folder))
    disk = SmallDisk(folder)
    try:
        shutil.rmtree(folder / "lost+found")
        yield disk
    finally:
        disk.thawed()
        # a process that is still there keeps its files; the mount ends with it
        _run("umount", "--lazy", str(folder))
        image.unlink()


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
