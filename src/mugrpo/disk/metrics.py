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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.full_disk import full_disk_explained
from mugrpo.disk.journal import record_growth, recorded
from mugrpo.disk.journal_lines import Mark
from mugrpo.disk.places import passing
from mugrpo.disk.publishing import publish_file

_BEYOND = 1e100  # seconds; a damaged file may have any number
# phase, in the order of the work -> the kind of the lines that have its seconds, and their keys
PHASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "refresh": ("refresh", ("time/refresh",)),
    "generate": ("refresh", ("time/generate",)),
    "score": ("refresh", ("time/score",)),
    "optimize": ("update", ("time/update", "time/read")),
    "checkpoint": ("update", ("time/checkpoint",)),
    "evaluate": ("evaluation", ("time/evaluate",)),
}


def seconds_of(line: Mapping[str, Any], phase: str) -> float:
    """Return the seconds of `phase` that a line has. What is no finite number counts as none."""
    kind, keys = PHASES[phase]
    values = [line.get(key) for key in keys] if line["kind"] == kind else []
    known = (v for v in values if isinstance(v, int | float) and not isinstance(v, bool))
    return sum(float(v) for v in known if abs(v) < _BEYOND)


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


class MetricsTail:
    """Reads a metrics file that grows: each call of `read` yields the lines that were added.

    Half a line at the end waits for its rest. A file that was replaced or cut is read again from
    its beginning, which `restarted` then says. If `strict`, a line that is none raises RunStopped;
    otherwise it is counted in `unreadable`.
    """

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        self._path, self._strict = path, strict
        self._file = self._offset = self._number = 0
        self.restarted, self.unreadable = False, 0

    def read(self) -> Iterator[dict[str, Any]]:
        self.restarted = False
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            now = os.fstat(file.fileno())
            if now.st_ino != self._file or now.st_size < self._offset:
                self._file, self._offset, self._number = now.st_ino, 0, 0
                self.restarted, self.unreadable = True, 0
            file.seek(self._offset)
            for text in file:
                if not text.endswith(b"\n"):
                    return
                self._offset += len(text)
                self._number += 1
                line = _decoded(text)
                if isinstance(line, dict):
                    yield line
                elif self._strict:
                    raise RunStopped(
                        f"{self._path}, line {self._number} is not a metrics line ({line}); "
                        f"`mugrpo repair {self._path.parent}` keeps the lines that a checkpoint "
                        "confirms"
                    )
                else:
                    self.unreadable += 1


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics file in order, except a last line that a kill cut short.

    Raises RunStopped, naming the line, if a line is not a metrics line.
    """
    return MetricsTail(path, strict=True).read()


def confirmed_lines(path: Path, marks: Iterable[Mark]) -> tuple[list[dict[str, Any]], int, int]:
    """Return the lines of the longest beginning of a metrics file that one of `marks` fits.

    Also return the number of lines that cannot be read, which are skipped, and of all others.
    """
    texts = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    decoded = {n: _decoded(text) for n, text in enumerate(texts) if text.endswith(b"\n")}
    lines = {n: line for n, line in decoded.items() if isinstance(line, dict)}
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


def _decoded(text: bytes) -> dict[str, Any] | str:
    """Return the line, or what is wrong with it."""
    try:
        line = dict(json.loads(text))
        return line if _is_event(line) else "no kind or update"
    except (ValueError, TypeError, RecursionError) as error:
        return str(error)


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
