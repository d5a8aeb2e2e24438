"""The objects below a URL of an object store (S3, GCS, anything that fsspec knows)."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import full_disk_explained, publish_file, unfinished
from mugrpo.disk.run_dir import refuse_links_out
from mugrpo.processes.messages import printable

_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # on Windows


class Store:
    """The objects below a URL, by their names relative to it.

    Raises UsageError if fsspec cannot use the URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        import fsspec
        import fsspec.implementations.local

        try:
            self._system, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise UsageError(
                f"{url} cannot be used ({error}); check it, or install the package that it needs"
            ) from None
        local = fsspec.implementations.local.LocalFileSystem
        self._local = isinstance(self._system, local)  # a folder, where a file may be cut short

    def read(self, name: str) -> bytes | None:
        """Return an object's bytes, or None if it does not exist."""
        try:
            data: bytes = self._system.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        return data

    def fetch(self, name: str, path: Path) -> None:
        """Write an object into the file `path`. Raises FileNotFoundError if it does not exist."""
        self._system.get_file(f"{self._root}/{name}", str(path))

    def write(self, name: str, data: bytes) -> None:
        """Write `data` as an object."""
        path = self._place(name)
        if self._local:
            with publish_file(Path(path)) as file:
                file.write(data)
        else:
            self._system.pipe_file(path, data)

    def create(self, name: str, data: bytes) -> None:
        """Write `data` as a new object. Raises FileExistsError if there is one of this name.

        Two processes can both succeed if the store has no exclusive write. In a folder, raises
        RunStopped if the disk is full.
        """
        path = f"{self._root}/{name}"
        self._system.makedirs(self._root, exist_ok=True)
        if self._local:
            _create_file(Path(path), data)
        else:
            self._system.pipe_file(path, data, mode="create")

    def put(self, name: str, source: Path) -> None:
        """Write the contents of the file `source` as an object."""
        path = self._place(name)
        if self._local:
            with publish_file(Path(path)) as file, open(source, "rb") as content:
                shutil.copyfileobj(content, file)
        else:
            self._system.put_file(str(source), path)

    def modified(self, name: str) -> float:
        """Return when an object was written, in seconds since 1970, or inf if that is not told."""
        try:
            return float(self._system.modified(f"{self._root}/{name}").timestamp())
        except (NotImplementedError, FileNotFoundError):
            return math.inf

    def remove(self, name: str) -> None:
        self._system.rm_file(f"{self._root}/{name}")

    def sizes(self) -> dict[str, int]:
        """Return name -> bytes of all objects, in order of their names.

        A size that the store does not tell is 0. Raises UsageError if the store is a folder with a
        link that leads out of it.
        """
        try:
            self._system.invalidate_cache()
            found = self._system.find(self._root, detail=True)
        except FileNotFoundError:
            return {}
        prefix = self._system._strip_protocol(self._root).rstrip("/") + "/"
        names = {path.removeprefix(prefix): path for path in sorted(found)}
        if self._local:
            refuse_links_out(Path(prefix))
        return {name: found[path].get("size") or 0 for name, path in names.items()}

    def _place(self, name: str) -> str:
        """Return the path of an object, in a folder that exists."""
        path = f"{self._root}/{name}"
        self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
        return path


def _create_file(path: Path, data: bytes) -> None:
    """Write a new file as a whole. Raises FileExistsError; RunStopped if the disk is full."""
    temporary = unfinished(path)
    with full_disk_explained(path):
        temporary.write_bytes(data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links; otherwise this fails too
            with open(path, "xb") as file:
                file.write(data)
        finally:
            temporary.unlink(missing_ok=True)


def refuse_odd(names: Iterable[str], url: str) -> None:
    """Raise UsageError if a name might lead out of a run's directory on some system.

    It might if it has empty parts or dots for parts, a backslash, a colon, a character that cannot
    be printed, or the name of a device, and if it is the folder of another name.
    """
    known = set(names)
    for name in known:
        parts = name.split("/")
        odd = "\\" in name or ":" in name or not name.isprintable()
        odd = odd or any(p in ("", ".", "..") or _DEVICE.fullmatch(p) for p in parts)
        if odd or any("/".join(parts[:end]) in known for end in range(1, len(parts))):
            raise UsageError(
                f"{url} has an object named {printable(name)}, which is not part of any run; "
                "nothing was written. Pull from a store that you trust"
            )
