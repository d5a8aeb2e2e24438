"""metrics.jsonl: one flat JSON object per event. Every report and chart is derived from it.

Every line has a `kind` ("refresh", "update", "evaluation", "suite/NAME", "repair") and `update`,
the number of updates made so far, including the update that a line of kind "update" describes. Of
several lines of a kind and an update, the last one counts. Keys that begin with `time/` are in
seconds. They are the only values that differ between an uninterrupted run and the same run killed
and resumed.

The file only grows, so a checkpoint can seal what it has (see `seal`). Each line carries its own
sha256, as nothing seals the lines after the newest checkpoint. Of these, a resumed run makes those
of updates again, and computes those of refreshes and evaluations from their shards.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.publishing import full_disk_explained, passing, publish_file, with_sum, without_sum

# phase, in the order of the work -> the kind of the lines that have its seconds, and their keys
PHASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "refresh": ("refresh", ("time/refresh",)),
    "generate": ("refresh", ("time/generate",)),
    "score": ("refresh", ("time/score",)),
    "optimize": ("update", ("time/update", "time/read", "time/logprobs")),
    "checkpoint": ("update", ("time/checkpoint",)),
    "evaluate": ("evaluation", ("time/evaluate",)),
}


def seconds_of(line: Mapping[str, Any], phase: str) -> float:
    """Return the seconds of `phase` that a line has."""
    kind, keys = PHASES[phase]
    return sum(line.get(key) or 0.0 for key in keys) if line["kind"] == kind else 0.0


class MetricsLog:
    """The metrics file at `path`, open for appending. Lines past `update` are removed first.

    `also` is called with the kind, update and values of every line written. Ranks that do not write
    have a log without a path, which keeps nothing.
    """

    def __init__(
        self,
        path: Path | None,
        update: int,
        also: Callable[[str, int, dict[str, Any]], None] = lambda *_: None,
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


def read_metrics(path: Path, unreadable: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics file in order, except a last line that a kill cut short.

    A line that is not as a run wrote it raises RunStopped. If `unreadable` is given, what is wrong
    with it is added there instead.
    """
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith(b"\n"):
                return
            try:
                line = without_sum(json.loads(text))
            except ValueError as error:
                fault = f"{path}, line {number} is not a metrics line ({error})"
                if unreadable is None:
                    raise RunStopped(
                        f"{fault}; `mugrpo repair {path.parent}` keeps the lines that a checkpoint "
                        "confirms"
                    ) from None
                unreadable.append(fault)
            else:
                yield line


def encoded(lines: Iterable[dict[str, Any]]) -> bytes:
    """Return the lines as a metrics file has them."""
    texts = (json.dumps(with_sum(line), allow_nan=False).encode() + b"\n" for line in lines)
    return b"".join(texts)


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


MOSTLY = 0.5  # share of truncated responses from which they are what is wrong


def truncation(refresh: Mapping[str, Any], longest: int) -> str | None:
    """Return what to say of a stage most of whose responses are truncated at `longest` tokens.

    Return None for other stages.
    """
    share = refresh.get("status/truncated", 0) / max(1, refresh["rollouts"])
    if refresh.get("mean_length") == longest:  # all are, be they judged or not
        share = 1.0
    if share < MOSTLY:
        return None
    return (
        f"{share:.0%} of the responses are truncated: raise rollouts.max_new_tokens = {longest}, "
        "or find out why they do not end (the chat template, model.eos_token)"
    )
