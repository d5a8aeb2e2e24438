"""metrics.jsonl: one flat JSON object per event. Every report and chart is derived from it.

Every line has a `kind` ("refresh", "update", "stage_end", "evaluation") and `update`, the number of
updates made so far, including the update that a line of kind "update" describes. Keys that begin
with `time/` are in seconds. They are the only values that differ between an uninterrupted run and
the same run killed and resumed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.full_disk import full_disk_explained
from mugrpo.disk.journal import record_growth, recorded
from mugrpo.disk.journal_lines import Mark
from mugrpo.disk.places import passing
from mugrpo.disk.publishing import publish_file


def _nowhere(kind: str, update: int, values: dict[str, Any]) -> None:
    pass


class MetricsLog:
    """The metrics file at `path`, open for appending. Lines past `update` are removed first.

    `also` is called with the kind, update and values of every line written. Ranks that do not write
    have a log without a path, which keeps nothing.
    """

    def __init__(
        self,
        path: Path | None,
        update: int,
        also: Callable[[str, int, dict[str, Any]], None] = _nowhere,
    ) -> None:
        self._path = path or Path(os.devnull)
        self._also = also
        self.reopen(update)

    def reopen(self, update: int) -> None:
        """Reopen the file after others have written to it, and remove lines past `update`."""
        self._keep(line for line in read_metrics(self._path) if line["update"] <= update)

    def has(self, kind: str, update: int) -> bool:
        return (kind, update) in self._seen

    def append(self, kind: str, update: int, **values: Any) -> None:
        """Append one line. A number that is not finite becomes null, as JSON cannot express it.

        Raises RunStopped if the disk is full.
        """
        passing(f"before a line of {kind}", self._path)
        self._seen.add((kind, update))
        line = _encode({"kind": kind, "update": update, **values})
        with full_disk_explained(self._path):
            self._grown = True
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, "No space left on device")
        passing("metrics line")
        self._also(kind, update, values)

    def put(self, kind: str, update: int, **values: Any) -> bool:
        """Write one line, replacing the line of this `kind` and `update` if there is one.

        Return whether the file changed. It does not if the same line is there already.
        """
        if not self.has(kind, update):
            self.append(kind, update, **values)
            return True
        fresh = json.loads(_encode({"kind": kind, "update": update, **values}))
        lines = list(read_metrics(self._path))
        if fresh in lines:
            return False
        self._file.close()
        self._keep(fresh if _key(line) == (kind, update) else line for line in lines)
        self._also(kind, update, values)
        return True

    def close(self) -> None:
        """Close the file. Its lines are recorded in the run's journal."""
        self._file.close()
        if self._grown:
            record_growth(self._path)
            self._grown = False

    def _keep(self, lines: Iterable[dict[str, Any]]) -> None:
        """Replace the file's content with `lines`, if it differs, and open it for appending."""
        kept = list(lines)
        keeps = self._path != Path(os.devnull)
        if keeps and not (self._path.exists() and self._path.read_bytes() == _encoded(kept)):
            write_metrics(self._path, kept)
        self._seen = set(map(_key, kept))
        self._grown = False
        # Unbuffered, so that no line is left waiting to be written if the disk is full.
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by close()


def read_metrics(
    path: Path, skips: Callable[[bytes], bool] = lambda _: False
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics file in order, except a last line that a kill cut short.

    Those that `skips` is true of are not looked into.

    Raises RunStopped, naming the line, if a line is not a metrics line.
    """
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in _decoded(file, skips):
            if isinstance(line, str):
                raise RunStopped(
                    f"{path}, line {number} is not a metrics line ({line}); `mugrpo repair "
                    f"{path.parent}` keeps the lines that a checkpoint confirms"
                )
            yield line


def confirmed_lines(path: Path, marks: Iterable[Mark]) -> tuple[list[dict[str, Any]], int, int]:
    """Return the lines of the longest beginning of a metrics file that one of `marks` fits.

    Also return the number of lines that cannot be read, which are skipped, and of all others.
    """
    texts = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    lines = {number - 1: line for number, line in _decoded(texts) if not isinstance(line, str)}
    data = b"".join(texts[index] for index in lines)
    end, done, digest = 0, 0, hashlib.sha256()
    for size, sha256 in sorted((mark.size or 0, mark.sha256) for mark in marks):
        if size <= len(data):
            digest.update(data[done:size])
            end, done = (size if digest.hexdigest() == sha256 else end), size
    confirmed = data[:end].count(b"\n")
    unreadable = sum(text.endswith(b"\n") for text in texts) - len(lines)
    return list(lines.values())[:confirmed], unreadable, len(lines) - confirmed


def write_metrics(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Publish a metrics file with `lines`."""
    data = _encoded(lines)
    with full_disk_explained(path), recorded({path: data}), publish_file(path) as file:
        file.write(data)


def _decoded(
    texts: Iterable[bytes], skips: Callable[[bytes], bool] = lambda _: False
) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield the number of each line, and the line, or what is wrong with it."""
    for number, text in enumerate(texts, start=1):
        if not text.endswith(b"\n"):
            return
        if skips(text):
            continue
        try:
            line = dict(json.loads(text))
            fault = None if _is_event(line) else "no kind or update"
        except (ValueError, TypeError, RecursionError) as error:
            fault = str(error)
        yield number, fault or line


def _is_event(line: dict[str, Any]) -> bool:
    update = line.get("update")
    return isinstance(line.get("kind"), str) and type(update) is int and update >= 0


def _key(line: dict[str, Any]) -> tuple[str, int]:
    return line["kind"], line["update"]


def _encoded(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(map(_encode, lines))


def _encode(line: dict[str, Any]) -> bytes:
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in line.items()
    }
    return json.dumps(finite, allow_nan=False).encode() + b"\n"
