"""The state of a run from its files alone, whichever process works on it, and how it is shown.

Nothing here locks or writes. Of the metrics file, only what was added is read again.
"""

from __future__ import annotations

import io
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError
from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mugrpo.config.stages import ScheduleOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.metrics import PHASES, MetricsTail, seconds_of
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet
from mugrpo.processes.lifetime import began
from mugrpo.processes.messages import visible
from mugrpo.report.read import Line, accuracy_text, flattened, number, stored_config
from mugrpo.report.readable import duration

# The limits of the warning signs; docs/defaults.md says where they come from.
_RATIO, _FALL, _ENTROPY, _WITHOUT_GRADIENT, _TRUNCATED = 100.0, 0.05, 0.02, 0.9, 0.1
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


class Bar(NamedTuple):
    """Work that is counted: `done` of `total` units."""

    name: str
    done: int
    total: int


class Sign(NamedTuple):
    """A warning sign: a value, and the limit above which (or `below` which) it warns."""

    name: str
    value: float
    limit: float
    below: bool = False

    @property
    def warns(self) -> bool:
        return self.value < self.limit if self.below else self.value > self.limit


@dataclass(frozen=True)
class RunState:
    """A run at one moment."""

    title: str
    status: str  # who works on it, or how it ended
    running: bool
    stage: str
    bars: tuple[Bar, ...]
    used: float  # seconds
    left: float | None  # seconds, if all kinds of work that are left were measured
    results: tuple[str, ...]
    signs: tuple[Sign, ...]
    notes: tuple[str, ...]  # what cannot be read


class Follower:
    """A view of the run at `root`, as `stored_config` opens it."""

    def __init__(self, root: Path) -> None:
        self._folder = RunDir(root)
        config = stored_config(root)["config"]
        self._options = flattened(config)
        try:
            schedule = ScheduleOptions.model_validate(config["schedule"])
        except (KeyError, ValidationError):
            raise UsageError(
                f"{root} is not a run (its config.json has no schedule); name a run's directory"
            ) from None
        self._planned = schedule
        self._tail = MetricsTail(self._folder.metrics)
        self._lines: list[Line] = []

    def state(self) -> RunState:
        """Return the run's state now."""
        folder, notes = self._folder, list[str]()
        added: list[Line] = list(self._tail.read())
        self._lines = added if self._tail.restarted else [*self._lines, *added]
        if self._tail.unreadable:
            notes.append(f"{folder.metrics} has {self._tail.unreadable} unreadable lines")
        schedule, total = self._planned, self._planned.total_updates
        made = max((line["update"] for line in self._of("update")), default=0)
        stage = min(schedule.stage_of(made), schedule.stages - 1)
        planned = schedule.batches(stage) * schedule.rollouts_per_update
        rollouts = 0
        try:
            entries = ShardSet(folder.shards(stage, "rollouts"), "rollouts").entries()
            rollouts = sum(entry["rows"] for entry in entries)
        except (RunStopped, UsageError, OSError) as error:
            notes.append(str(error))
        status, running = self._status(finished=made >= total)
        since = time.time() - max(map(_changed, (folder.metrics, folder.root / "lock")))
        later = sum(map(schedule.batches, range(stage + 1, schedule.stages)))
        to_sample = max(planned - rollouts, 0) + later * schedule.rollouts_per_update
        return RunState(
            title=f"{folder.root}  {self._options.get('preset')}, {self._options.get('task.name')}",
            status=status,
            running=running,
            stage=f"stage {stage} (of 0 to {schedule.stages - 1})",
            bars=(
                Bar("rollouts", rollouts, max(rollouts, planned)),
                Bar("updates", made - schedule.first_update(stage), schedule.updates(stage)),
                Bar("all", made, total),
            ),
            used=self._seconds(PHASES) + (max(since, 0.0) if running else 0.0),
            left=self._left(total - made, to_sample) if running else None,
            results=tuple(self._results()),
            signs=tuple(self._signs()),
            notes=tuple(notes),
        )

    def _of(self, kind: str) -> list[Line]:
        return [line for line in self._lines if line["kind"] == kind]

    def _last(self, kind: str) -> Line:
        """Return the newest line of a kind, or {}."""
        return next((line for line in reversed(self._lines) if line["kind"] == kind), {})

    def _values(self, kind: str, key: str) -> list[float]:
        """Return the numbers under `key` in the lines of a kind."""
        return [v for line in self._of(kind) if (v := number(line, key)) is not None]

    def _seconds(self, phases: Iterable[str]) -> float:
        return sum(seconds_of(line, phase) for phase in phases for line in self._lines)

    def _status(self, *, finished: bool) -> tuple[str, bool]:
        """Return who works on the run, or how it ended, and whether anybody works on it."""
        root, again = self._folder.root, f"`mugrpo train {self._folder.root}` goes on"
        lock = root / "lock"
        holder = lock.read_text(errors="replace").strip() if lock.is_file() else ""
        if not holder:
            return "finished" if finished else f"stopped; {again}", False
        known = _HOLDER.match(holder)
        if known and known[2] == socket.gethostname() and not _alive(int(known[1])):
            return f"killed ({holder}); {again}", False
        stages = max(self._folder.stages(), default=0)
        written = (lock, self._folder.metrics, self._folder.shards(stages, "rollouts"))
        ago = time.time() - max(map(_changed, (*written, root / "checkpoints")))
        return f"{holder}; last file {duration(max(ago, 0.0))} ago", True

    def _left(self, updates: int, rollouts: int) -> float | None:
        """Return the seconds that `updates` and `rollouts` will take, or None if that is unknown.

        Each counts as the mean of those so far. With the updates go checkpoints and evaluations,
        with the rollouts the refreshes.
        """
        seconds = 0.0
        for made, left, phases in (
            (len(self._of("update")), updates, ("optimize", "checkpoint", "evaluate")),
            (sum(self._values("refresh", "rollouts")), rollouts, ("refresh", "generate", "score")),
        ):
            if left > 0 and not made:
                return None
            seconds += self._seconds(phases) * left / made if left > 0 else 0.0
        return seconds

    def _results(self) -> Iterator[str]:
        """Yield the newest metrics as text."""
        if evaluation := self._last("evaluation"):
            yield f"accuracy {accuracy_text(evaluation)} after update {evaluation['update']}"
        for name, (kind, key) in _SHOWN.items():
            if (value := number(self._last(kind), key)) is not None:
                yield f"{name} {value:.3g}"

    def _signs(self) -> Iterator[Sign]:
        options, update, refresh = self._options, self._last("update"), self._last("refresh")
        of_stage = (one for one in self._of("update") if one.get("stage") == update.get("stage"))
        ratios = [number(line, "ratio/negative/max") for line in of_stage]
        if known := [ratio for ratio in ratios if ratio is not None]:
            yield Sign("largest ratio, A < 0", max(known), _RATIO)
        if (accuracy := number(self._last("evaluation"), "accuracy")) is not None:
            best = max(self._values("evaluation", "accuracy"))
            yield Sign("fall of accuracy", best - accuracy, _FALL)
        first = next(filter(None, self._values("update", "entropy")), None)
        if first and (entropy := number(update, "entropy")) is not None:
            yield Sign("entropy / the first", entropy / first, _ENTROPY, below=True)
        if (share := number(refresh, "zero_variance_share")) is not None:
            yield Sign("groups without gradient", share, _WITHOUT_GRADIENT)
        if rows := number(refresh, "rollouts"):
            statuses = {s: number(refresh, f"status/{s}") or 0.0 for s in ("truncated", *_FAILED)}
            yield Sign("truncated responses", statuses.pop("truncated") / rows, _TRUNCATED)
            limit = number(options, "rewards.failure_limit")
            yield Sign("failures of rewards", sum(statuses.values()) / rows, limit or 0.0)
        if update:
            skipped = sum(map(bool, self._values("update", "skipped")))
            yield Sign("updates not applied", skipped, 0)


def draw(state: RunState) -> RenderableType:
    """Return the state for a console. Characters that a terminal would obey are shown instead."""
    left = "" if state.left is None else f", about {duration(state.left)} left"
    rows = Table.grid(padding=(0, 1), expand=True)
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(ratio=1, overflow="fold")
    rows.add_row("run", Text(visible(state.title)))
    rows.add_row("status", Text(visible(state.status)))
    rows.add_row("stage", Text(state.stage))
    for bar in state.bars:
        rows.add_row(bar.name, drawn_bar(bar))
    rows.add_row("time", Text(f"{duration(state.used)} used{left}"))
    rows.add_row("results", Text(visible(", ".join(state.results))))
    for note in state.notes:
        rows.add_row("note", Text(visible(note)))
    page = Table.grid(expand=True)
    page.add_row(rows)
    if state.signs:
        page.add_row(Text("warning signs: now, limit (! beyond it)", style="dim"))
        page.add_row(Columns(map(_drawn_sign, state.signs), padding=(0, 1)))
    return page


def plain(state: RunState, width: int = 80) -> str:
    """Return the state as lines of text, without colors."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(draw(state))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def drawn_bar(bar: Bar) -> RenderableType:
    line = Table.grid(padding=(0, 1), expand=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True)
    line.add_row(ProgressBar(bar.total or 1, min(bar.done, bar.total)), f"{bar.done}/{bar.total}")
    return line


def _drawn_sign(sign: Sign) -> Text:
    mark, relation = "!" if sign.warns else " ", "<" if sign.below else ">"
    value = f"{round(sign.value, 4):.3g}"
    text = f"{mark} {sign.name:<23} {value:>6} {relation} {sign.limit:g}"
    return Text(text, style="bold yellow" if sign.warns else "")


def _changed(path: Path) -> float:
    """Return the path's mtime, or 0 if it does not exist."""
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
