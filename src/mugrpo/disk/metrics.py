"""metrics.jsonl: one flat JSON object per event. Every report and chart is derived from it.

Every line has a `kind` ("refresh", "update", "stage_end", "evaluation") and `update`, the number of
updates made so far, including the update that a line of kind "update" describes. Keys that begin
with `time/` are in seconds. They are the only values that differ between an uninterrupted run and
the same run killed and resumed.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.places import passing
from mugrpo.disk.publishing import full_disk_explained, publish_file


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
        self.close()
        self._keep(fresh if _key(line) == (kind, update) else line for line in lines)
        self._also(kind, update, values)
        return True

    def close(self) -> None:
        self._file.close()

    def _keep(self, lines: Iterable[dict[str, Any]]) -> None:
        """Replace the file's content with `lines` and open it for appending."""
        kept = list(lines)
        if self._path != Path(os.devnull):
            with publish_file(self._path) as file:
                file.writelines(map(_encode, kept))
        self._seen = set(map(_key, kept))
        # Unbuffered, so that no line is left waiting to be written if the disk is full.
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by close()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics file in order, except a last line that a kill cut short.

    Raises RunStopped, naming the line, if a line is not a metrics line.
    """
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                try:
                    event = dict(json.loads(line))
                    event["kind"], event["update"]
                except (ValueError, TypeError, KeyError) as error:
                    raise RunStopped(
                        f"{path}, line {number} is not a metrics line ({error}); remove that line"
                    ) from None
                yield event


def _key(line: dict[str, Any]) -> tuple[str, int]:
    return line["kind"], line["update"]


def _encode(line: dict[str, Any]) -> bytes:
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in line.items()
    }
    return json.dumps(finite, allow_nan=False).encode() + b"\n"
