"""metrics.jsonl: one flat JSON object per event. Every report and chart is derived from it.

Every line has a `kind` ("refresh", "update", "stage_end", "evaluation") and `update`, the number of
updates made so far, including the update that a line of kind "update" describes. Of several lines
of a kind and an update, the last one counts. Keys that begin with `time/` are in seconds. They are
the only values that differ between an uninterrupted run and the same run killed and resumed.

The file only grows, so a checkpoint can seal what it has (see `seal`). Each line carries its own
sha256, as nothing seals the lines after the newest checkpoint. Of these, a resumed run makes those
of updates again, and computes those of refreshes and evaluations from their shards.
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
from mugrpo.disk.publishing import full_disk_explained, publish_file, with_sum, without_sum


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
        kept = [line for line in read_metrics(self._path) if line["update"] <= update]
        if self._path != Path(os.devnull):
            data = encoded(kept)
            if not (self._path.exists() and self._path.read_bytes() == data):
                with publish_file(self._path) as file:
                    file.write(data)
        self._last = {_key(line): line for line in kept}
        # Unbuffered, so that no line is left waiting to be written if the disk is full.
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by close()

    def has(self, kind: str, update: int) -> bool:
        return (kind, update) in self._last

    def append(self, kind: str, update: int, **values: Any) -> None:
        """Append one line. A number that is not finite becomes null, as JSON cannot express it.

        Raises RunStopped if the disk is full.
        """
        passing(f"before a line of {kind}", self._path)
        line = _finite({"kind": kind, "update": update, **values})
        self._last[kind, update] = line
        data = encoded([line])
        with full_disk_explained(self._path):
            if self._file.write(data) < len(data):
                raise OSError(errno.ENOSPC, "No space left on device")
        passing("metrics line")
        self._also(kind, update, values)

    def put(self, kind: str, update: int, **values: Any) -> bool:
        """Append one line, unless the last one of this `kind` and `update` says the same.

        Return whether it was appended. Seconds (`time/*`) do not count.
        """
        fresh = _finite({"kind": kind, "update": update, **values})
        if _untimed(self._last.get((kind, update), {})) == _untimed(fresh):
            return False
        self.append(kind, update, **values)
        return True

    def close(self) -> None:
        self._file.close()


def read_metrics(
    path: Path, skips: Callable[[bytes], bool] = lambda _: False
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics file in order, except a last line that a kill cut short.

    Those that `skips` is true of are not looked into. Raises RunStopped, naming the line, if a line
    is not as a run wrote it.
    """
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, text in enumerate(file, start=1):
            if not text.endswith(b"\n"):
                return
            if skips(text):
                continue
            try:
                line = without_sum(json.loads(text))
                if not _is_event(line):
                    raise ValueError("it has no kind or no update")
            except (ValueError, RecursionError) as error:
                raise RunStopped(
                    f"{path}, line {number} is not a metrics line ({error}); `mugrpo repair "
                    f"{path.parent}` keeps the lines that a checkpoint confirms"
                ) from None
            yield line


def encoded(lines: Iterable[dict[str, Any]]) -> bytes:
    """Return the lines as a metrics file has them."""
    texts = (json.dumps(with_sum(line), allow_nan=False).encode() + b"\n" for line in lines)
    return b"".join(texts)


def _is_event(line: dict[str, Any]) -> bool:
    update = line.get("update")
    return isinstance(line.get("kind"), str) and type(update) is int and update >= 0


def _key(line: dict[str, Any]) -> tuple[str, int]:
    return line["kind"], line["update"]


def _untimed(line: dict[str, Any]) -> str:
    """Return what a line says, as JSON, which has no tuples."""
    kept = {name: value for name, value in line.items() if not name.startswith("time/")}
    return json.dumps(kept, sort_keys=True)


def _finite(line: dict[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in line.items()
    }
