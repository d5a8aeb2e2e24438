"""metrics.jsonl: one flat JSON object per event. Every report and chart is derived from it.

Every line has a `kind` ("refresh", "update", "evaluation", "suite/NAME", "repair") and `update`,
the number of updates made so far, including the update that a line of kind "update" describes. All
other values are numbers or null. Keys that begin with `time/` are in seconds. They are the only
values that differ between an uninterrupted run and the same run killed and resumed.

A line is right if its own sha256 fits, and if it continues those before it (`History`): lines of
updates come once each, without a gap, and no line is of an update that has none yet. A line
"repair" says that those before it, up to its update, are lost. Of several lines of another kind
and update, the last one counts, and none repeats the one before.

The file may be longer than the memory: nothing here holds the lines of updates.
"""

import errno
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.publishing import (
    failpoint,
    full_disk_explained,
    publish_file,
    with_checksum,
    without_checksum,
)

UPDATE, EVALUATION = "update", "evaluation"
REPAIR = "repair"  # the kind of a line before which lines are lost

_LONGEST = 1 << 20  # bytes of a line; a run's have a few thousand
_MOST = 1 << 53  # updates; a float still tells one from the next

# phase, in the order of the work -> the kind of the lines that have its seconds, and their keys
PHASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "refresh": ("refresh", ("time/refresh",)),
    "generate": ("refresh", ("time/generate",)),
    "score": ("refresh", ("time/score",)),
    "optimize": (UPDATE, ("time/update", "time/read", "time/logprobs")),
    "checkpoint": (UPDATE, ("time/checkpoint",)),
    "evaluate": (EVALUATION, ("time/evaluate",)),
}

Line = Mapping[str, Any]


def number(line: Line, key: str) -> float | None:
    """Return the finite number at `key`, or None."""
    value = line.get(key)
    return float(value) if _finite(value) else None


def _finite(value: Any) -> TypeGuard[float]:
    """Return whether `value` is a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def seconds_of(line: Line, phase: str) -> float:
    """Return the seconds of `phase` that a line has."""
    kind, keys = PHASES[phase]
    return sum(number(line, key) or 0.0 for key in keys) if line["kind"] == kind else 0.0


@dataclass
class History:
    """What must be known of a metrics file's lines so far, to tell which may be the next.

    `left_out` has the numbers of the lines that do not count: those that are wrong, and those after
    which another of the same kind and update came.
    """

    made: int = 0  # updates with a line, or with one that is lost, as a line "repair" says
    lines: int = 0
    left_out: set[int] = field(default_factory=set)
    fault: str | None = None  # the first one
    wrong: int = 0  # number of faults
    newest: dict[str, Line] = field(default_factory=dict)  # kind -> its last line, not of updates
    ends: dict[str, tuple[int, int]] = field(default_factory=dict)  # kind -> first and last update
    _said: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)

    def said(self, kind: str, update: int) -> int | None:
        """Return a digest of the last line of a kind (not of updates) and update, or None."""
        return self._said.get(kind, {}).get(update, (None,))[0]

    def gap(self, line: Line) -> bool:
        """Return whether the line of an update before `line` is missing."""
        before: int = line["update"] - (line["kind"] == UPDATE)
        return line["kind"] != REPAIR and before > self.made

    def repeats(self, line: Line) -> bool:
        """Return whether `line` says again what an earlier one has said."""
        kind, update = line["kind"], line["update"]
        if kind in (UPDATE, REPAIR):
            return bool(update <= self.made)
        return self.said(kind, update) == _digest(line)

    def add(self, line: Line) -> None:
        """Take `line` as the next one."""
        kind, update = line["kind"], line["update"]
        self.made = max(self.made, update)
        first, last = self.ends.get(kind, (update, update))
        self.ends[kind] = min(first, update), max(last, update)
        if kind not in (UPDATE, REPAIR):
            said = self._said.setdefault(kind, {})
            if update in said:
                self.left_out.add(said[update][1])
            said[update] = _digest(line), self.lines
            self.newest[kind] = line

    def forget_after(self, update: int) -> None:
        """Take back the lines of later updates."""
        self.made = min(self.made, update)
        for said in self._said.values():
            for later in [one for one in said if one > update]:
                del said[later]


class MetricsLog:
    """The metrics file at `path`, open for appending. Lines past `update` are removed first.

    `also` is called with the kind, update and values of every line written. Raises RunStopped if a
    line is wrong.
    """

    def __init__(
        self,
        path: Path,
        update: int,
        also: Callable[[str, int, dict[str, Any]], None] = lambda *_: None,
    ) -> None:
        self._path, self._also, self._history = path, also, History()
        kept = 0
        for text, line, fault in checked(path, self._history):
            if line is None or fault:
                raise RunStopped(_refusal(path, fault))
            kept += len(text) if line["update"] <= update else 0
        if path.exists() and kept < path.stat().st_size:
            rewrite(path, update)
        self.removed = max(0, self._history.made - update)  # updates
        self._history.forget_after(update)
        # Unbuffered, so that no line is left waiting to be written if the disk is full.
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()

    def has(self, kind: str, update: int) -> bool:
        """Return whether there is a line of a kind other than "update", and of this update."""
        return self._history.said(kind, update) is not None

    def append(self, kind: str, update: int, **values: Any) -> None:
        """Append one line. A number that is not finite becomes null, as JSON cannot express it.

        Raises RunStopped if the disk is full.
        """
        failpoint(f"before a line of {kind}", self._path)
        line = _line(kind, update, values)
        self._history.add(line)
        data = encoded(line)
        with full_disk_explained(self._path):
            if self._file.write(data) < len(data):
                raise OSError(errno.ENOSPC, "No space left on device")
        failpoint("metrics line")
        self._also(kind, update, values)

    def put(self, kind: str, update: int, **values: Any) -> bool:
        """Append one line, unless the last one of this `kind` and `update` says the same.

        Return whether it was appended. Seconds (`time/*`) do not count.
        """
        if self._history.said(kind, update) == _digest(_line(kind, update, values)):
            return False
        self.append(kind, update, **values)
        return True

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics file in order, except a last line that a kill cut short.

    Raises RunStopped at a line that is not as a run wrote it.
    """
    for _, line, fault in checked(path, History()):
        if line is None or fault:
            raise RunStopped(_refusal(path, fault))
        yield line


def counting(
    path: Path, history: History, kinds: tuple[str, ...] = ("",)
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file that count and whose kind begins with one of `kinds`.

    `history` is what `surveyed` returned for the file.
    """
    for place, text in enumerate(islice(_texts(path), history.lines), 1):
        if place not in history.left_out:
            line = json.loads(text)
            if line["kind"].startswith(kinds):
                del line["sha256"]
                yield line


def surveyed(path: Path, last: int | None = None) -> History:
    """Return what there is to know of a metrics file, whatever is wrong with it.

    `last` is as in `checked`.
    """
    history = History()
    for _ in checked(path, history, last):
        pass
    return history


def checked(
    path: Path, history: History, last: int | None = None
) -> Iterator[tuple[bytes, dict[str, Any] | None, str | None]]:
    """Yield each line of a metrics file: its bytes, what it says, and what is wrong with it.

    What it says is None if it must not be used. After a gap it may be, up to `last`, the last
    update that the run can have. The lines are added to `history`. A last line that a kill cut
    short is left out.
    """
    for text in _texts(path):
        history.lines += 1
        line, fault = None, None
        try:
            line = _decoded(text)
        except (ValueError, RecursionError) as error:
            fault = f"is not a metrics line ({error})"
        else:
            about = f"is of kind {line['kind']!r:.40} and update {line['update']:,}"
            if history.repeats(line):
                line, fault = None, f"{about}, which an earlier one has told"
            elif history.gap(line):
                fault = f"{about}, but the line of update {history.made + 1:,} is missing"
        if fault:
            fault = f"{path}, line {history.lines:,} {fault}"
            history.fault = history.fault or fault
            history.wrong += 1
        leaps = line and (fault or line["kind"] == REPAIR) and last is not None
        if line is None or (leaps and line["update"] > last):
            line = None
            history.left_out.add(history.lines)
        else:
            history.add(line)
        yield text, line, fault


def rewrite(path: Path, last: int, without: Collection[tuple[str, int]] = ()) -> None:
    """Keep the right lines of a metrics file up to update `last`, but those `without`.

    Each is a kind and an update. A line "repair" says where lines of updates are missing.
    """
    made = 0
    with publish_file(path) as file:
        for text, line, _ in checked(path, History(), last):
            if line is None or line["update"] > last or (line["kind"], line["update"]) in without:
                continue
            before = line["update"] - (line["kind"] == UPDATE)
            if before > made:
                file.write(encoded({"kind": REPAIR, "update": before}))
            made = max(made, line["update"])
            if line["kind"] != REPAIR:
                file.write(text)
        if made < last:
            file.write(encoded({"kind": REPAIR, "update": last}))


def encoded(line: Line) -> bytes:
    """Return a line as a metrics file has it."""
    return json.dumps(with_checksum(line), allow_nan=False).encode() + b"\n"


def _texts(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, without a last one that a kill cut short.

    Of one that is far too long, yield the beginning.
    """
    if not path.exists():
        return
    with open(path, "rb") as file:
        while text := file.readline(_LONGEST):
            if not text.endswith(b"\n"):
                if len(text) < _LONGEST:
                    return
                rest = text
                while rest and not rest.endswith(b"\n"):
                    rest = file.readline(_LONGEST)
            yield text


def _decoded(text: bytes) -> dict[str, Any]:
    """Return what a line says. Raises ValueError if a run does not write such a line."""
    line = without_checksum(json.loads(text))
    kind, update = line.get("kind"), line.get("update")
    if not isinstance(kind, str):
        raise ValueError("its kind is no text")
    if not isinstance(update, int) or isinstance(update, bool) or not 0 <= update < _MOST:
        raise ValueError("its update is no number of updates")
    for key, value in line.items():
        if key != "kind" and value is not None and not _finite(value):
            raise ValueError(f"its {key!r:.60} is no number")
    return line


def _refusal(path: Path, fault: str | None) -> str:
    return f"{fault}; `mugrpo repair {path.parent}` keeps the lines that are right"


def _line(kind: str, update: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line with null for each number that is not finite."""
    assert all(value is None or isinstance(value, int | float) for value in values.values()), values
    numbers = {key: value if _finite(value) else None for key, value in values.items()}
    return {"kind": kind, "update": update, **numbers}


def _digest(line: Line) -> int:
    """Return a hash of what a line says, without seconds. Another process has other ones."""
    kept = {name: value for name, value in line.items() if not name.startswith("time/")}
    return hash(json.dumps(kept, sort_keys=True))


MOSTLY = 0.5  # share of truncated responses from which they are what is wrong
_HARDLY_ANY_SIGNAL = 0.9  # share of groups without a gradient from which a stage teaches little


def stage_trouble(refresh: Mapping[str, Any], longest: int) -> str | None:
    """Return what to say of a stage that teaches little, or None. See `truncation`."""
    share, cut = number(refresh, "zero_variance_share"), truncation(refresh, longest)
    if (share or 0.0) < _HARDLY_ANY_SIGNAL:
        return cut
    usual = "Problems are too hard or too easy for the model, or the reward never varies"
    equal = f"in {share:.0%} of the groups all rewards are equal; they give no gradient"
    return f"{equal}. {cut or usual}"


def truncation(refresh: Mapping[str, Any], longest: int) -> str | None:
    """Return what to say of a stage most of whose responses are truncated at `longest` tokens.

    Return None for other stages.
    """
    share = number(refresh, "truncated_share") or 0.0
    if share < MOSTLY:
        return None
    return (
        f"{share:.0%} of the responses are truncated: raise rollouts.max_new_tokens = {longest}, "
        "or find out why they do not end (the chat template, model.eos_token)"
    )
