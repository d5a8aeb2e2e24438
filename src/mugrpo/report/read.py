"""The data of a report: a run's files, and where its time went. Nothing is written.

A run may be unfinished. Files that do not exist yet are absent from the report, and one that is
damaged becomes a sentence in `notes`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, isnan
from pathlib import Path
from sys import intern
from typing import Any

from mugrpo.config.load import leaves
from mugrpo.config.training import ScheduleOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.metrics import (
    PHASES,
    REPAIR,
    UPDATE,
    History,
    Line,
    counting,
    number,
    seconds_of,
    stage_trouble,
    surveyed,
)
from mugrpo.disk.publishing import read_checked
from mugrpo.disk.run_dir import RunDir
from mugrpo.report.status import parts_at_work
from mugrpo.rollouts.evaluation import headline, shares_of_problems
from mugrpo.run.faults import faults
from mugrpo.run.signs import Signs

_PART = "time/refresh/"
_ORDER = ("update", "evaluation", "refresh")  # of the lines with the same number of updates
_SAMPLE_FILES, _EVALUATIONS = 12, 3  # read at most, evenly spaced
_DRAWN = 4096  # lines of a kind, or a few more; if there were others, neighbours become one
_ADDED = ("time/", "status/", "groups_right/", "rollouts", "tokens", "skipped")  # of neighbours


@dataclass(frozen=True)
class RunData:
    """A run as a report sees it."""

    name: str
    config: dict[str, Any]
    provenance: dict[str, Any]
    kinds: dict[str, list[Line]]  # kind -> its lines; they ascend in `update`, with one for each
    samples: list[dict[str, Any]] = field(default_factory=list)  # files, see `report.samples`
    evaluated: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # kind -> lines, if neighbours became one
    faults: list[str] = field(default_factory=list)  # for each, what is wrong and the remedy
    working: list[str] = field(default_factory=list)  # who makes what of the stage, in parts
    shares: dict[str, float] = field(default_factory=dict)  # of right samples, problem by problem

    def count(self, kind: str) -> int:
        """Return how many lines of `kind` the run has."""
        return self.counts.get(kind, len(self.lines(kind)))

    def lines(self, kind: str) -> list[Line]:
        """Return the lines of `kind`, by the number of updates before them."""
        return self.kinds.get(kind, [])

    @property
    def refreshes(self) -> list[Line]:
        return self.lines("refresh")

    @property
    def updates(self) -> list[Line]:
        return self.lines("update")

    @property
    def evaluations(self) -> list[Line]:
        return self.lines("evaluation")

    @cached_property
    def options(self) -> dict[str, Any]:
        """Return dotted name -> value of the resolved config."""
        return dict(leaves(self.config))

    @property
    def planned_updates(self) -> int:
        """Return the number of updates that the config plans."""
        return ScheduleOptions.model_validate(self.config["schedule"]).total_updates

    @property
    def refresh_updates(self) -> list[int]:
        """Return the number of updates before each refresh: its place on an axis of updates."""
        return [line["update"] for line in self.refreshes]

    @cached_property
    def headline(self) -> str:
        """Return "accuracy", or "reward" if nothing says what is right."""
        return headline(*self.evaluations)

    def keys(self, kind: str, prefix: str = "", suffix: str = "") -> list[str]:
        """Return the keys in lines of `kind` with `prefix` and `suffix`, by first appearance."""
        keys = dict.fromkeys(key for line in self.lines(kind) for key in line)
        return [key for key in keys if key.startswith(prefix) and key.endswith(suffix)]


def column(lines: Sequence[Line], key: str) -> list[float | None]:
    """Return the number at `key` of each line."""
    return [number(line, key) for line in lines]


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """Read the runs at `paths`, each once. Raises UsageError if a path is not a run."""
    roots = list(dict.fromkeys(path.absolute().resolve() for path in paths))
    return [_read_run(root, name) for root, name in zip(roots, unique_names(roots), strict=True)]


def unique_names(roots: Sequence[Path]) -> list[str]:
    """Return the directories' names, with as many parents as are needed to tell them apart."""
    names = [root.name for root in roots]
    for depth in range(2, max((len(root.parts) for root in roots), default=0) + 1):
        repeated = {name for name in names if names.count(name) > 1}
        longer = ["/".join(root.parts[-depth:]) for root in roots]
        names = [
            long if name in repeated else name for name, long in zip(names, longer, strict=True)
        ]
    return names


def stored_config(root: Path) -> dict[str, Any]:
    """Return a run's config.json.

    Raises UsageError if `root` is not a run, RunStopped if the file is damaged or lost.
    """
    run_dir = RunDir(root)
    begun = run_dir.config.is_file() or run_dir.checkpoint_updates()
    document = run_dir.read_config() if begun else None
    if document is None:
        raise UsageError(f"{root} is not a run (it has no config.json); name a run's directory")
    return document


def _read_run(root: Path, name: str) -> RunData:
    document, run_dir = stored_config(root), RunDir(root)
    config = document["config"]
    planned = ScheduleOptions.model_validate(config["schedule"]).total_updates
    history = surveyed(run_dir.metrics, planned)
    # What a process is writing is checked by that process.
    wrong = faults(run_dir, contents=not run_dir.held(), history=history)
    notes, width = list(_lost(run_dir, history)), ceil(max(history.made, 1) / _DRAWN)
    working = parts_at_work(run_dir)
    if history.made < planned and not working and not run_dir.held():
        notes.insert(
            0,
            f"this run stopped after {history.made:,} of {planned:,} updates; "
            f"`mugrpo train {root}` goes on",
        )
    if width > 1:
        notes.append(
            f"the lines of {width} updates are drawn as one: the sums of seconds and counts, and "
            "the means of other numbers"
        )
    longest = config["rollouts"]["max_new_tokens"]
    lines = _watched(counting(run_dir.metrics, history), notes, longest)
    kinds, counts = _drawn(lines, history, width)
    return RunData(
        name=name,
        config=config,
        provenance=document["provenance"],
        kinds=kinds,
        samples=read_samples(_evenly(sample_files(run_dir, "update"), _SAMPLE_FILES), notes),
        evaluated=read_samples(_evenly(sample_files(run_dir, "evaluation"), _EVALUATIONS), notes),
        notes=sorted(notes, key=lambda note: "a collapse:" not in note),
        counts=counts,
        faults=[fault.sentence(run_dir) for fault in wrong],
        working=working,
        shares=_shares(run_dir, kinds.get("evaluation", [])),
    )


def _shares(run_dir: RunDir, evaluations: Sequence[Line]) -> dict[str, float]:
    """Return what the last evaluation measured of each problem, or {} if it is not there."""
    folder = run_dir.evaluation(evaluations[-1]["update"] if evaluations else 0)
    try:
        shares = shares_of_problems(folder) if folder.exists() else {}
    except RunStopped:  # a fault says so
        return {}
    return {problem: share for problem, share in shares.items() if not isnan(share)}


def _lost(run_dir: RunDir, history: History) -> Iterator[str]:
    """Yield a sentence if lines "repair" tell of updates whose lines are lost."""
    if REPAIR in history.ends:
        made = lost = 0
        for line in counting(run_dir.metrics, history, (UPDATE, REPAIR)):
            lost += line["update"] - made if line["kind"] == REPAIR else 0
            made = line["update"]
        yield f"the lines of {lost:,} updates were lost, says a repair"


def _watched(lines: Iterable[Line], notes: list[str], longest: int) -> Iterator[Line]:
    """Yield `lines`, and add to `notes` their warning signs, and the first stage in trouble."""
    signs, trouble = Signs(), None
    for line in lines:
        signs.see(line["kind"], line["update"], line, notes.append)
        if line["kind"] == "refresh" and not trouble:
            trouble = stage_trouble(line, longest)
            notes += [f"stage {line['stage']}: {trouble}"] if trouble else []
        yield line


def _drawn(
    lines: Iterable[Line], history: History, width: int
) -> tuple[dict[str, list[Line]], dict[str, int]]:
    """Return kind -> its lines by `update`, and kind -> their number.

    Lines of a kind within `width` updates become one, but for the first and the last line.
    """
    blocks = defaultdict[str, dict[tuple[int, bool], _Block]](dict)
    counts = Counter[str]()
    for line in lines:
        kind, update = line["kind"], line["update"]
        end = update in history.ends[kind]
        place = (update if end else ceil(update / width), end)
        if place not in blocks[kind]:
            blocks[kind][place] = _Block()
        blocks[kind][place].add(line)
        counts[kind] += 1
    made = {kind: [block.line() for block in of.values()] for kind, of in blocks.items()}
    return {kind: sorted(of, key=lambda line: line["update"]) for kind, of in made.items()}, counts


class _Block:
    """Neighbours among the lines of a kind. A line alone stays as it is."""

    def __init__(self) -> None:
        self._last: Line = {}
        self._sums: dict[str, tuple[float, int]] = {}
        self._lines = 0

    def add(self, line: Line) -> None:
        self._lines += 1
        if self._lines == 2:
            self._sum(self._last)
        if self._lines > 1:
            self._sum(line)
        if line["update"] >= self._last.get("update", 0):
            self._last = line

    def _sum(self, line: Line) -> None:
        for key in line:
            if (value := number(line, key)) is not None:
                total, count = self._sums.get(key, (0.0, 0))
                self._sums[intern(key)] = total + value, count + 1

    def line(self) -> Line:
        """Return the lines as one, of the last one's update."""
        one = {
            key: total if key.startswith(_ADDED) else total / count
            for key, (total, count) in self._sums.items()
        }
        return (
            {**one, **{key: self._last[key] for key in ("kind", "update")}} if one else self._last
        )


def _evenly(items: Sequence[Path], count: int) -> list[Path]:
    """Return at most `count` of `items`, evenly spaced, including the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def sample_files(run_dir: RunDir, kind: str) -> list[Path]:
    """Return the files of samples of a kind, "update" or "evaluation", in order."""
    files = sorted(run_dir.samples(0).parent.glob(f"{kind}-*.json"))
    return [file for file in files if file.stem.removeprefix(f"{kind}-").isdigit()]


def read_samples(files: Iterable[Path], notes: list[str]) -> list[dict[str, Any]]:
    """Return what files of samples hold, without those that are damaged, which are noted."""
    documents = []
    for file in files:
        try:
            documents.append(read_checked(file))
        except RunStopped as error:
            notes.append(f"{file} has no samples that can be shown ({error})")
    return documents


def phase_seconds(run: RunData) -> dict[str, float]:
    """Return phase -> total seconds."""
    lines = [line for kind in _ORDER for line in run.lines(kind)]
    return {phase: sum(seconds_of(line, phase) for line in lines) for phase in PHASES}


def training_seconds(run: RunData) -> float:
    """Return the seconds of all phases but evaluation."""
    return sum(s for phase, s in phase_seconds(run).items() if phase != "evaluate")


def training_clock(run: RunData) -> dict[tuple[str, int], float]:
    """Return the seconds of training, without evaluation, up to each ("update"|"evaluation", n).

    A checkpoint's seconds are in the line of the update after it, and count from there on.
    """
    passed, clock = 0.0, dict[tuple[str, int], float]()
    lines = [
        (line["update"], order, kind, line)
        for order, kind in enumerate(_ORDER)
        for line in run.lines(kind)
    ]
    for update, _, kind, line in sorted(lines, key=lambda one: one[:2]):
        passed += sum(seconds_of(line, phase) for phase in PHASES if phase != "evaluate")
        clock[kind, update] = passed
    return clock


def refresh_parts(lines: Iterable[Line]) -> dict[str, float]:
    """Return the total seconds of each part of the refreshes in `lines`, if they were measured."""
    totals: dict[str, float] = {}
    for line in lines:
        for key in line:
            if key.startswith(_PART):
                name = key.removeprefix(_PART)
                totals[name] = totals.get(name, 0.0) + (number(line, key) or 0.0)
    return totals
