"""The state of a run, from its files alone, whichever process works on it.

Nothing here locks or writes. Of the metrics file, only what was added is read again.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from mugrpo.config.stages import NegativeRatio, ScheduleOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.publishing import without_sum
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet
from mugrpo.processes.driver import began
from mugrpo.report.read import KINDS, Line, accuracy_text, flattened, number
from mugrpo.report.readable import duration
from mugrpo.rollouts.schedule import Schedule
from mugrpo.run.state import Bar, RunState, Sign

# The limits of the warning signs; docs/defaults.md says where they come from.
_LARGEST_RATIO = NegativeRatio().limit
_FALL, _ENTROPY, _WITHOUT_GRADIENT, _TRUNCATED = 0.05, 0.02, 0.9, 0.1

_SECONDS = {  # what a line measures -> its seconds
    "update": ("time/update", "time/read", "time/checkpoint"),
    "rollout": ("time/generate", "time/score"),
    "refresh": ("time/refresh",),
    "evaluation": ("time/evaluate",),
}
_SHOWN = {  # name on the screen -> kind of line, key
    "reward": ("refresh", "behavior_reward"),
    "batch reward": ("update", "batch_reward"),
    "length": ("refresh", "mean_length"),
    "entropy": ("update", "entropy"),
    "KL": ("update", "kl_behavior"),
    "gradient norm": ("update", "grad_norm"),
    "learning rate": ("update", "lr"),
}
_FAILED = ("error", "skipped", "timeout", "unfinished")  # statuses
_HOLDER = re.compile(r"pid (\d+) on host (\S+) since ")


class Follower:
    """A view of the run at `root`, whichever process works on it.

    Raises UsageError if there is no run.
    """

    def __init__(self, root: Path) -> None:
        self._folder = RunDir(root)
        stored = self._folder.config_as_stored()
        try:
            self._options = flattened(stored["config"])
            schedule = ScheduleOptions.model_validate(stored["config"]["schedule"])
        except (KeyError, TypeError, AttributeError, ValidationError):
            raise UsageError(
                f"{root} is not a run (it has no readable config.json); name a run's directory"
            ) from None
        planned = Schedule(schedule, schedule.problems_per_update, seed=0)
        self._lines = _Lines(self._folder.metrics, planned)

    def state(self) -> RunState:
        """Return the run's state now."""
        lines, folder, notes = self._lines, self._folder, list[str]()
        with _noted(notes):
            lines.read()
        if lines.unreadable:
            notes.append(f"{folder.metrics} has {lines.unreadable} unreadable lines")
        schedule, made = lines.schedule, lines.update
        stage = min(schedule.stage_of(made), schedule.stages - 1)
        total = schedule.options.total_updates
        status, running = self._status(stage, made >= total)
        in_stage = made - schedule.first_update(stage)
        bars = [Bar("updates", in_stage, schedule.planned_updates(stage)), Bar("all", made, total)]
        missing = schedule.batches(stage) * schedule.options.rollouts_per_update
        phases: tuple[str, ...] = ()
        with _noted(notes):
            rollouts, scores = (_rows(folder.shards(stage, k), k) for k in ("rollouts", "scores"))
            bars.insert(0, Bar("rollouts", rollouts, max(rollouts, missing)))
            missing = max(missing - rollouts, 0)
            phases = self._phases(stage, rollouts, missing, scores)
        since = max(map(_changed, (folder.metrics, folder.root / "lock")))
        return RunState(
            title=f"{folder.root}  {self._options.get('preset')}, {self._options.get('task.name')}",
            status=status,
            running=running,
            place=f"stage {stage} (of 0 to {schedule.stages - 1})",
            phases=phases if running else (),
            bars=tuple(bars),
            used=sum(lines.spent.values()) + (max(time.time() - since, 0.0) if running else 0.0),
            left=self._left(stage, missing) if running else None,
            metrics=tuple(lines.shown()),
            signs=tuple(self._signs()),
            notes=tuple(notes),
        )

    def _status(self, stage: int, finished: bool) -> tuple[str, bool]:
        """Return who works on the run, or how it ended, and whether anybody works on it."""
        root, again = self._folder.root, f"`mugrpo train {self._folder.root}` goes on"
        lock = root / "lock"
        holder = lock.read_text(errors="replace").strip() if lock.is_file() else ""
        if not holder:
            return "finished" if finished else f"stopped; {again}", False
        known = _HOLDER.match(holder)
        if known and known[2] == socket.gethostname() and not _alive(int(known[1])):
            return f"killed ({holder}); {again}", False
        folders = [root / name for name in ("evaluations", "checkpoints")]
        folders += [self._folder.shards(stage, kind) for kind in ("rollouts", "scores")]
        newest = max(map(_changed, (self._folder.metrics, lock, *folders)))
        return f"{holder}; last file {duration(max(time.time() - newest, 0.0))} ago", True

    def _phases(self, stage: int, rollouts: int, missing: int, scores: int) -> tuple[str, ...]:
        """Return the phases at work. What is generated shows when its shard is published."""
        root, phases = self._folder.root, list[str]()
        planned = (self._folder.shards(stage, "plan") / "manifest.json").exists()
        if any((root / "evaluations").glob("update-*.tmp.*")):
            phases = ["evaluate"]
        elif missing:
            phases = ["generate"] if rollouts else ["refresh", "generate"]
        elif scores < rollouts:
            phases = ["score"]
        elif not planned:
            phases = ["generate"]  # dynamic sampling needs more
        if planned and rollouts and phases != ["evaluate"]:
            phases.append("optimize")  # with `overlap`, beside the others
        if any((root / "checkpoints").glob("update-*.tmp.*")):
            phases.append("checkpoint")  # written beside what comes next
        return tuple(phases)

    def _left(self, stage: int, rollouts: int) -> float | None:
        """Return the seconds left, or None if they are unknown. The stage lacks `rollouts`.

        Every update, rollout, refresh and evaluation counts as the mean of those so far.
        """
        lines, schedule = self._lines, self._lines.schedule
        total, later = schedule.options.total_updates, range(stage + 1, schedule.stages)
        per_update = schedule.options.rollouts_per_update
        every = max(int(number(self._options, "evaluation.every") or 0), 0) or math.inf
        newest = number(lines.last.get("evaluation", {}), "update") or 0
        in_stage = min(schedule.first_update(stage + 1), total) - lines.update
        remaining = {
            "update": in_stage + sum(schedule.planned_updates(s) for s in later),
            "rollout": rollouts + per_update * sum(map(schedule.batches, later)),
            "refresh": len(later),
            "evaluation": math.ceil(total / every) - math.ceil(newest / every),
        }
        seconds = 0.0
        for kind, left in remaining.items():
            done = lines.made[kind]
            if left > 0 and not done:
                return None
            seconds += left * lines.spent[kind] / done if left > 0 else 0.0
        return seconds

    def _signs(self) -> Iterator[Sign]:
        lines, options = self._lines, self._options
        refresh, update, evaluation = (lines.last.get(kind, {}) for kind in KINDS)
        if (ratio := lines.largest_ratio) is not None:
            rule = options.get("stage_until.name") == NegativeRatio().name
            limit = number(options, "stage_until.limit") if rule else None
            yield Sign("largest ratio, A < 0", ratio, limit or _LARGEST_RATIO)
        if (accuracy := number(evaluation, "accuracy")) is not None:
            yield Sign("fall of accuracy", lines.best - accuracy, _FALL)
        if lines.entropy and (entropy := number(update, "entropy")) is not None:
            yield Sign("entropy / the first", entropy / lines.entropy, _ENTROPY, below=True)
        if (share := number(refresh, "zero_variance_share")) is not None:
            yield Sign("groups without gradient", share, _WITHOUT_GRADIENT)
        if rows := number(refresh, "rollouts"):
            statuses = {s: number(refresh, f"status/{s}") or 0.0 for s in ("truncated", *_FAILED)}
            yield Sign("truncated responses", statuses.pop("truncated") / rows, _TRUNCATED)
            limit = number(options, "rewards.failure_limit")
            yield Sign("failures of rewards", sum(statuses.values()) / rows, limit or 0.0)
        if update:
            yield Sign("updates not applied", lines.skipped, 0)


class _Lines:
    """What a screen needs of a metrics file, whose lines are read once each."""

    def __init__(self, path: Path, planned: Schedule) -> None:
        self._path, self._planned = path, planned
        self._forget(0)

    def _forget(self, file: int) -> None:
        self._file, self._offset = file, 0
        self.schedule = self._planned
        self.last: dict[str, Line] = {}  # kind -> its newest line
        self.unreadable = self.update = self.skipped = 0
        self.spent = defaultdict[str, float](float)  # of _SECONDS
        self.made = Counter[str]()  # of _SECONDS
        self.entropy: float | None = None  # of the first update that has one
        self.largest_ratio: float | None = None  # of the stage
        self.best = 0.0  # accuracy

    def read(self) -> None:
        """Read what was added. Half a line at the end waits for its rest."""
        if not self._path.is_file():
            return
        with open(self._path, "rb") as file:
            now = os.fstat(file.fileno())
            if now.st_ino != self._file or now.st_size < self._offset:  # another file, or cut
                self._forget(now.st_ino)
            file.seek(self._offset)
            for text in file:
                if not text.endswith(b"\n"):
                    break
                self._offset += len(text)
                try:
                    line = without_sum(json.loads(text))
                    self._add(line["kind"], int(line["update"]), line)
                except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                    self.unreadable += 1

    def _add(self, kind: str, update: int, line: Line) -> None:
        if kind not in (*KINDS, "stage_end"):
            return
        total = self.schedule.options.total_updates
        if kind == "stage_end" and self.schedule.starts[-1] < update <= total:
            self.schedule = self.schedule.ending_at(update)
        if kind == "update":
            if line.get("stage") != self.last.get(kind, {}).get("stage"):
                self.largest_ratio = None
            ratios = (number(line, "ratio/negative/max"), self.largest_ratio)
            self.largest_ratio = max((r for r in ratios if r is not None), default=None)
            self.entropy = self.entropy or number(line, "entropy")
            self.skipped += bool(number(line, "skipped"))
            self.update = max(self.update, update)
        if kind == "evaluation":
            self.best = max(self.best, number(line, "accuracy") or 0.0)
        for work in ("refresh", "rollout") if kind == "refresh" else (kind,):
            self.spent[work] += sum(number(line, key) or 0.0 for key in _SECONDS.get(work, ()))
            self.made[work] += int(number(line, "rollouts") or 0) if work == "rollout" else 1
        self.last[kind] = line

    def shown(self) -> Iterator[tuple[str, str]]:
        """Yield the newest metrics: name, value."""
        if evaluation := self.last.get("evaluation"):
            yield "accuracy", f"{accuracy_text(evaluation)} after update {evaluation['update']}"
        for name, (kind, key) in _SHOWN.items():
            if (value := number(self.last.get(kind, {}), key)) is not None:
                yield name, f"{value:.3g}"


@contextmanager
def _noted(notes: list[str]) -> Iterator[None]:
    """Turn an error of reading, in the block, into a note."""
    try:
        yield
    except (RunStopped, UsageError, OSError) as error:
        notes.append(str(error))


def _rows(folder: Path, kind: str) -> int:
    """Return the number of published rows. The manifest is read if it was published again."""
    manifest = folder / "manifest.json"
    published = manifest.stat() if manifest.is_file() else None
    return _listed(folder, kind, published.st_ino, published.st_mtime_ns) if published else 0


@lru_cache(maxsize=8)
def _listed(folder: Path, kind: str, _file: int, _changed: int) -> int:
    return sum(entry["rows"] for entry in ShardSet(folder, kind).entries())


def _changed(path: Path) -> float:
    """Return when a file or the list of names in a folder changed, or 0 if there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _alive(pid: int) -> bool:
    """Return whether this machine has such a process."""
    try:
        os.kill(pid, 0)
    except PermissionError:  # someone else's
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return bool(began(pid)) or not Path("/proc/self/stat").exists()  # a zombie has ended
