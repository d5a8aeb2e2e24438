"""The data of a report: a run's files, read leniently, and where its time went. Nothing is written.

A run may be unfinished, old or damaged. Files that do not exist yet are absent from the report. A
file that cannot be read becomes a sentence in `notes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mugrpo.config.stages import ScheduleOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.metrics import PHASES, read_metrics, seconds_of
from mugrpo.disk.publishing import read_summed
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.seal import REPAIR
from mugrpo.report.samples import (
    EvaluationFile,
    SampleFile,
    finite,
    read_evaluation_file,
    read_sample_file,
)

Line = Mapping[str, Any]

KINDS = ("refresh", "update", "evaluation")
GRPO_UPDATES_PER_REFRESH = 4  # mu of the standard GRPO that Mu-GRPO is compared with
_PART = "time/refresh/"

# Within an update: the next refresh comes after the update, its checkpoint and its evaluation.
_ORDER = {"optimize": 0, "checkpoint": 1, "evaluate": 2, "refresh": 3, "generate": 4, "score": 5}
SUITE = "suite/"  # begins the kind of a benchmark suite's lines

_SAMPLE_FILES_READ = 12
_EVALUATIONS_READ = 3

_File = TypeVar("_File")


@dataclass(frozen=True)
class RunData:
    """A run as a report sees it. Lines ascend in `update`; each kind has one line per update."""

    name: str
    config: dict[str, Any]
    provenance: dict[str, Any]
    refreshes: list[Line]
    updates: list[Line]
    evaluations: list[Line]
    suites: dict[str, list[Line]] = field(default_factory=dict)  # of benchmark suites, by name
    samples: list[SampleFile] = field(default_factory=list)
    evaluated: list[EvaluationFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @cached_property
    def options(self) -> dict[str, Any]:
        """Return dotted name -> value of the resolved config."""
        return flattened(self.config)

    @property
    def planned_updates(self) -> int | None:
        """Return the number of updates that the config plans, or None if it does not say."""
        try:
            return ScheduleOptions.model_validate(self.config["schedule"]).total_updates
        except (KeyError, ValidationError):
            return None

    @property
    def made(self) -> int:
        """Return the number of updates that have a line."""
        return len(self.updates)

    @property
    def refreshed(self) -> int:
        """Return the number of refreshes that have a line."""
        return len(self.refreshes)

    @property
    def refresh_updates(self) -> list[int]:
        """Return the number of updates before each refresh: its place on an axis of updates."""
        return [line["update"] for line in self.refreshes]

    def keys(self, kind: str, prefix: str = "", suffix: str = "") -> list[str]:
        """Return the keys in lines of `kind` with `prefix` and `suffix`, by first appearance."""
        lines = {"refresh": self.refreshes, "update": self.updates, "evaluation": self.evaluations}
        keys = dict.fromkeys(key for line in lines[kind] for key in line)
        return [key for key in keys if key.startswith(prefix) and key.endswith(suffix)]


def number(line: Line, key: str) -> float | None:
    """Return the finite number at `key`, or None."""
    value = line.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return finite(value)


def accuracy_text(line: Line) -> str:
    """Return an evaluation's accuracy, with its 95 % interval if the line has one."""
    share, low, high = (number(line, f"accuracy{end}") for end in ("", "_low", "_high"))
    if share is None:
        return "unknown"
    around = f" ({low:.3f} to {high:.3f})" if low is not None and high is not None else ""
    return f"{share:.3f}{around}"


def column(lines: Sequence[Line], key: str) -> list[float | None]:
    """Return the number at `key` of each line."""
    return [number(line, key) for line in lines]


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """Read the runs at `paths`, each once. Raises UsageError if a path is not a run."""
    roots = list(dict.fromkeys(path.absolute().resolve() for path in paths))
    if not roots:
        raise UsageError("name at least one run's directory")
    stored = [stored_config(root) for root in roots]
    return [
        _read_run(root, name, document)
        for root, name, document in zip(roots, unique_names(roots), stored, strict=True)
    ]


def unique_names(roots: Sequence[Path]) -> list[str]:
    """Return the directories' names, with as many parents as are needed to tell them apart."""
    deepest = max(len(root.parts) for root in roots)
    names = ["/".join(root.parts[-1:]) or str(root) for root in roots]
    for depth in range(2, deepest + 1):
        repeated = {name for name in names if names.count(name) > 1}
        names = [
            "/".join(root.parts[-depth:]) if name in repeated else name
            for root, name in zip(roots, names, strict=True)
        ]
    return names


def flattened(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted name -> value for nested options."""
    flat: dict[str, Any] = {}
    for key, value in options.items():
        name = f"{prefix}{key}"
        flat |= flattened(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def evenly(items: Sequence[Any], count: int) -> list[Any]:
    """Return at most `count` of `items`, evenly spaced, including the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def stored_config(root: Path) -> dict[str, Any]:
    """Return a run's config.json. Raises UsageError if `root` is not a run."""
    run_dir = RunDir(root)
    document = run_dir.read_config() if run_dir.config.is_file() else None
    if document is None:
        raise UsageError(f"{root} is not a run (it has no config.json); name a run's directory")
    return document


def _read_run(root: Path, name: str, document: dict[str, Any]) -> RunData:
    run_dir, notes = RunDir(root), list[str]()
    lines = lines_by_kind(run_dir, notes)
    return RunData(
        name=name,
        config=document["config"],
        provenance=document["provenance"],
        refreshes=lines["refresh"],
        updates=lines["update"],
        evaluations=lines["evaluation"],
        suites={kind.removeprefix(SUITE): lines[kind] for kind in lines if kind.startswith(SUITE)},
        samples=_samples(run_dir, "update", _SAMPLE_FILES_READ, read_sample_file, notes),
        evaluated=_samples(run_dir, "evaluation", _EVALUATIONS_READ, read_evaluation_file, notes),
        notes=notes,
    )


def lines_by_kind(run_dir: RunDir, notes: list[str]) -> dict[str, list[Line]]:
    """Return the metrics lines by kind, without those that cannot be read, which are noted."""
    lines: dict[str, dict[int, Line]] = {kind: {} for kind in KINDS}
    unreadable: list[str] = []
    try:
        for line in read_metrics(run_dir.metrics, unreadable):
            if line["kind"] == REPAIR:
                notes.append(f"lines before update {line['update']} were lost, says a repair")
            if line["kind"] in KINDS or line["kind"].startswith(SUITE):
                lines.setdefault(line["kind"], {})[line["update"]] = line
    except OSError as error:
        notes.append(f"{error}; this report uses the lines before it")
    if unreadable:
        notes.append(f"{len(unreadable)} lines of {run_dir.metrics} cannot be read")
    return {kind: [by_update[u] for u in sorted(by_update)] for kind, by_update in lines.items()}


def _samples(
    run_dir: RunDir, kind: str, count: int, read: Callable[[Any], _File], notes: list[str]
) -> list[_File]:
    """Return what `read` makes of at most `count` of the files of samples of a kind."""
    chosen = evenly(sample_files(run_dir, kind), count)
    return [part for file in chosen if (part := read_samples(file, read, notes)) is not None]


def sample_files(run_dir: RunDir, kind: str) -> list[Path]:
    """Return the files of samples of a kind, "update" or "evaluation", in order."""
    files = sorted(run_dir.samples(0).parent.glob(f"{kind}-*.json"))
    return [file for file in files if file.stem.removeprefix(f"{kind}-").isdigit()]


def read_samples(file: Path, read: Callable[[Any], _File], notes: list[str]) -> _File | None:
    """Return what `read` makes of a file of samples, or None, with a note, if that fails."""
    try:
        return read(read_summed(file))
    except (
        RunStopped,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        notes.append(f"{file} has no samples that can be shown ({error})")
        return None


@dataclass(frozen=True)
class Span:
    """Seconds spent on a phase after `update` updates ("optimize": on that update itself)."""

    phase: str
    stage: int  # counted by refreshes; -1 before the first
    update: int
    seconds: float


@dataclass(frozen=True)
class GRPOCost:
    """A run's updates under GRPO with mu = 4: arithmetic on measured durations."""

    refreshes: int
    refresh_seconds: float  # mean over the measured refreshes
    measured: int  # refreshes
    training_seconds: float


def spans(run: RunData) -> list[Span]:
    """Return the run's time in order: update, checkpoint, evaluation, then the next refresh.

    A checkpoint's seconds are in the line of the update after it; here they come before that
    update.
    """
    entries = [
        (line["update"] - (phase == "checkpoint"), order, phase, seconds_of(line, phase))
        for line in (*run.updates, *run.evaluations, *run.refreshes)
        for phase, order in _ORDER.items()
        if PHASES[phase][0] == line["kind"]
    ]
    entries.sort(key=lambda entry: entry[:2])
    ordered, stage = [], -1
    for update, _, phase, seconds in entries:
        stage += phase == "refresh"
        if seconds > 0:
            # An evaluation before the first refresh belongs to the stage that follows.
            ordered.append(Span(phase, max(stage, 0), update, seconds))
    return ordered


def training_clock(run: RunData) -> dict[tuple[str, int], float]:
    """Return the seconds of training, without evaluation, up to each ("update"|"evaluation", n)."""
    passed, clock = 0.0, dict[tuple[str, int], float]()
    timeline = iter(spans(run))
    events = [("update", line["update"], 0) for line in run.updates]
    events += [("evaluation", line["update"], 1) for line in run.evaluations]
    pending = next(timeline, None)
    for kind, update, order in sorted(events, key=lambda event: (event[1], event[2])):
        while pending and (pending.update, _ORDER[pending.phase]) <= (update, order):
            passed += pending.seconds if pending.phase != "evaluate" else 0.0
            pending = next(timeline, None)
        clock[kind, update] = passed
    return clock


def phase_seconds(timeline: Sequence[Span]) -> dict[str, float]:
    """Return phase -> total seconds."""
    return {phase: sum(s.seconds for s in timeline if s.phase == phase) for phase in PHASES}


def training_seconds(run: RunData) -> float:
    """Return the seconds of all phases but evaluation."""
    return sum(span.seconds for span in spans(run) if span.phase != "evaluate")


def grpo_cost(run: RunData) -> GRPOCost | None:
    """Return the cost of the same updates with a refresh after every four of them.

    Return None if no refresh was measured.
    """
    measured = [
        s - (number(line, "time/refresh/start") or 0.0)  # an engine starts once, however few
        for line in run.refreshes
        if (s := number(line, "time/refresh")) is not None and s >= 0
    ]
    if not measured or not run.updates:
        return None
    mean = sum(measured) / len(measured)
    refreshes = math.ceil(run.made / GRPO_UPDATES_PER_REFRESH)
    return GRPOCost(
        refreshes=refreshes,
        refresh_seconds=mean,
        measured=len(measured),
        training_seconds=training_seconds(run) - sum(measured) + refreshes * mean,
    )


def refresh_parts(lines: Iterable[Line]) -> dict[str, float]:
    """Return the total seconds of each part of the refreshes in `lines`, if they were measured."""
    totals: dict[str, float] = {}
    for line in lines:
        for key in line:
            if key.startswith(_PART):
                name = key.removeprefix(_PART)
                totals[name] = totals.get(name, 0.0) + (number(line, key) or 0.0)
    return totals
