"""The data of a report: a run's files, read leniently. Nothing here writes into a run.

A run may be unfinished, old or damaged. Files that do not exist yet are absent from the report. A
file that cannot be read becomes a sentence in `notes`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import ValidationError

from mugrpo.config.stages import ScheduleOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.metrics import read_metrics
from mugrpo.disk.publishing import read_summed
from mugrpo.disk.records import FinishReason
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.seal import REPAIR
from mugrpo.disk.shards import ShardSet
from mugrpo.report.samples import (
    EvaluationFile,
    SampleFile,
    finite,
    read_evaluation_file,
    read_sample_file,
)

Line = Mapping[str, Any]
Lengths = dict[str, NDArray[np.int64]]  # finish reason -> response tokens of each rollout

KINDS = ("refresh", "update", "evaluation")
SUITE = "suite/"  # begins the kind of a benchmark suite's lines

LINES = "lines"  # the key of how many lines a line stands for
# Lines that are read of each kind, in files of more bytes: a million lines take gigabytes and
# minutes, and no chart shows them.
_LINES_READ, _LONG = 10_000, 1 << 26
_BEGINS, _LONGEST_KIND = b'{"kind": "', 80
_ADDED = re.compile(rb'"(time/[\w/]+|skipped)": (-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)[,}]')
_KINDS_READ = 1000
_STAGES_READ = 6  # stages whose rollouts are read; thousands would take minutes
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
    lengths: dict[int, Lengths] = field(default_factory=dict)  # stage -> lengths, of some stages
    rollout_stages: int = 0  # stages that have rollouts
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
        return sum(map(stands_for, self.updates))

    @property
    def refreshed(self) -> int:
        """Return the number of refreshes that have a line."""
        return sum(map(stands_for, self.refreshes))

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


def stands_for(line: Line) -> int:
    """Return how many lines of the file a line stands for: itself, unless these were many."""
    count = line.get(LINES, 1)
    return count if type(count) is int and count > 0 else 1


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
    stages = _rollout_stages(run_dir)
    return RunData(
        name=name,
        config=document["config"],
        provenance=document["provenance"],
        refreshes=lines["refresh"],
        updates=lines["update"],
        evaluations=lines["evaluation"],
        suites={kind.removeprefix(SUITE): lines[kind] for kind in lines if kind.startswith(SUITE)},
        lengths=_lengths(run_dir, evenly(stages, _STAGES_READ), notes),
        rollout_stages=len(stages),
        samples=_samples(run_dir, "update", _SAMPLE_FILES_READ, read_sample_file, notes),
        evaluated=_samples(run_dir, "evaluation", _EVALUATIONS_READ, read_evaluation_file, notes),
        notes=notes,
    )


def lines_by_kind(run_dir: RunDir, notes: list[str]) -> dict[str, list[Line]]:
    """Return the metrics lines by kind, up to a damaged line, which is noted."""
    lines: dict[str, dict[int, Line]] = {kind: {} for kind in KINDS}
    try:
        thinner = _Thinner(run_dir.metrics)
        for line in read_metrics(run_dir.metrics, thinner.skips):
            kind, update = line["kind"], line["update"]
            if kind == REPAIR:
                notes.append(f"lines were lost before update {update}, and a repair dropped them")
            if kind in KINDS or (kind.startswith(SUITE) and len(lines) < _KINDS_READ):
                lines.setdefault(kind, {})[update] = thinner.with_skipped(line)
        notes += [
            f"of the lines of kind {kind.decode(errors='replace')}, every {step:,}th is used, with "
            "the seconds and the updates not applied of those before it"
            for kind, step in thinner.steps.items()
            if step > 1
        ]
    except (RunStopped, OSError, UnicodeError) as error:
        notes.append(f"{error}; this report uses the lines before it")
    return {kind: [by_update[u] for u in sorted(by_update)] for kind, by_update in lines.items()}


class _Thinner:
    """Of a long metrics file, the lines that are read: at most _LINES_READ of each kind."""

    def __init__(self, path: Path) -> None:
        self.steps: dict[bytes, int] = {}
        self._counts, self._seen = Counter[bytes](), Counter[bytes]()
        self._skipped: dict[bytes, dict[str, float]] = {}
        if path.is_file() and path.stat().st_size > _LONG:
            with open(path, "rb") as file:
                self._counts.update(_kind_of(text) for text in file if text.endswith(b"\n"))
            most = self._counts.most_common(_KINDS_READ)
            self.steps = {kind: math.ceil(count / _LINES_READ) for kind, count in most}

    def skips(self, text: bytes) -> bool:
        """Return whether to skip a line, whose seconds the next one of its kind gets."""
        kind = _kind_of(text) if self.steps else b""
        step = self.steps.get(kind, 1)
        if step == 1:
            return False
        self._seen[kind] += 1
        if self._seen[kind] % step == 0 or self._seen[kind] == self._counts[kind]:
            return False
        sums = self._skipped.setdefault(kind, {LINES: 1})
        sums[LINES] += 1
        for name, value in _ADDED.findall(text):
            sums[name.decode()] = sums.get(name.decode(), 0) + float(value)
        return True

    def with_skipped(self, line: dict[str, Any]) -> Line:
        sums = self._skipped.pop(line["kind"].encode(errors="replace")[:_LONGEST_KIND], {})
        added = {name: value + (number(line, name) or 0) for name, value in sums.items()}
        return {**line, **added, LINES: sums[LINES]} if sums else line


def _kind_of(text: bytes) -> bytes:
    """Return the kind of a metrics line, as a run writes it, without reading the line."""
    return text[len(_BEGINS) : len(_BEGINS) + _LONGEST_KIND].partition(b'"')[0]


def _rollout_stages(run_dir: RunDir) -> list[int]:
    folders = [folder for folder, kind in run_dir.shard_folders() if kind == "rollouts"]
    return [int(folder.parent.name) for folder in folders if folder.parent.name.isdigit()]


def _lengths(run_dir: RunDir, stages: Sequence[int], notes: list[str]) -> dict[int, Lengths]:
    lengths = {}
    for stage in stages:
        try:
            shards = ShardSet(run_dir.shards(stage, "rollouts"), "rollouts")
            lengths[stage] = _stage_lengths(shards, notes)
        except (RunStopped, UsageError, OSError) as error:
            notes.append(f"response lengths of stage {stage} are missing: {error}")
    return {stage: by_reason for stage, by_reason in lengths.items() if by_reason}


def _stage_lengths(shards: ShardSet, notes: list[str]) -> Lengths:
    parts: dict[str, list[NDArray[np.int64]]] = {}
    for shard in shards.numbers():
        try:
            file = shards.open(shard)
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=["response_ids", "finish_reason"])
                sizes = pc.list_value_length(table.column("response_ids")).to_numpy()
                reasons = np.array(table.column("finish_reason").to_pylist(), dtype=object)
                for reason in dict.fromkeys(reasons):
                    parts.setdefault(str(reason), []).append(sizes[reasons == reason].astype(int))
        except (RunStopped, OSError, pa.ArrowException, KeyError) as error:
            notes.append(f"response lengths of a shard are missing: {error}")
    return {
        reason: np.concatenate(arrays) for reason, arrays in sorted(parts.items(), key=_stop_first)
    }


def _stop_first(item: tuple[str, Any]) -> tuple[bool, str]:
    return item[0] != FinishReason.STOP, item[0]


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
