"""Run a study's cells: as many at once as there are cores for their threads.

    WORK/first-stages/KEY/    a run whose first stage's rollouts and scores several cells share
    WORK/cells/CELL/          a cell's run, with its output in CELL.log

A cell is a run like any other: it can be inspected, and resumed after a kill. A finished cell
becomes a row of the study's table. Its rollouts, checkpoints and evaluations are then removed,
unless they are to be kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from threading import Lock

from rich.console import Console

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.publishing import publish_folder
from mugrpo.disk.run_dir import RunDir
from mugrpo.extensions.lab.alignment import can_align
from mugrpo.extensions.lab.study.outcome import Results
from mugrpo.extensions.lab.study.spec import Cell
from mugrpo.processes.lifetime import StopFlag, passed_on
from mugrpo.run.opened import OpenRun
from mugrpo.run.opening import open_run
from mugrpo.run.progress import Progress
from mugrpo.stages.plan import shards_made
from mugrpo.stages.stage import Stage
from mugrpo.tools.summary import LEARNED_NOTHING

_SHARED = ("rollouts", "scores")
_REMOVED = ("stages", "checkpoints", "evaluations", "benchmarks", "alignment")
_LOOK = 0.5  # seconds between checks of the stop flag


class Cells:
    """The cells of a study, which run in `work` and put their rows into `results`."""

    def __init__(
        self,
        base: Path,
        cells: Sequence[Cell],
        results: Results,
        work: Path,
        *,
        keep: bool,
        aligned: bool,
        say: Callable[[str], None],
        stop: StopFlag,
    ) -> None:
        self.base = base
        self.cells = cells
        self.results = results
        self.work = work
        self.keep = keep
        self.aligned = aligned
        self.say = say
        self.stop = stop
        self._alone = Lock()  # held to open a run or to write results

    def run(self, at_once: int) -> list[str]:
        """Run the unfinished cells, `at_once` at a time. Return a sentence per cell that failed.

        If a shared first stage fails, no cell is run. Raises Interrupted after a signal, once the
        running cells are saved.
        """
        pending = [cell for cell in self.cells if self.results.of(cell) is None]
        if copied := self.results.take_over(pending):
            self.say(f"{len(copied)} cells are copied from other studies")
            pending = [cell for cell in pending if cell not in copied]
        self.say(f"{len(self.cells) - len(pending)} of {len(self.cells)} cells are finished")
        users = Counter(cell.first_stage for cell in self.cells)
        shared = {c.first_stage: c for c in pending if users[c.first_stage] > 1}
        with ThreadPoolExecutor(at_once) as pool:
            early = list(pool.map(partial(self._fault, self._first_stage), shared.values()))
            if any(early):
                early.append("no cell was run, because a first stage that cells share failed")
            late = [] if any(early) else list(pool.map(partial(self._fault, self._cell), pending))
        self.stop.check()
        return [fault for fault in (*early, *late) if fault]

    def _fault(self, do: Callable[[Cell], str | None], cell: Cell) -> str | None:
        """Return the fault that `do` returns or raises, so that other cells can still run."""
        try:
            return do(cell)
        except (UsageError, RunStopped) as error:
            return f"{cell}: {error}; to start it from scratch, remove its folder in {self.work}"

    def _first_stage(self, cell: Cell) -> str | None:
        """Generate and score the first stage that `cell` shares. Return what failed, or None."""
        if self._stopping():
            return None
        folder = self._shared(cell)
        # Another cell may have begun it: what decides the rollouts is the same.
        with self._alone, self._opened(cell, folder, force=True) as run:
            counts = (shards_made(Stage.of(run, 0), kind) for kind in _SHARED)
            if all(published == total for published, total in counts):
                return None
        for command in ("generate", "score"):
            words = [command, str(folder), "--stage", "0"]
            if fault := self._process(words, folder.with_suffix(".log"), cell.threads):
                return f"first stage of {cell}: {fault}"
        return None

    def _cell(self, cell: Cell) -> str | None:
        """Run a cell to its end and put its row into the table. Return what failed, or None."""
        if self._stopping():
            return None
        folder = self.work / "cells" / cell.name
        with self._alone, self._opened(cell, folder):
            if self._shared(cell).exists():
                share_first_stage(RunDir(self._shared(cell)), RunDir(folder))
        log = folder.with_name(f"{folder.name}.log")
        aligned = self.aligned and can_align(cell.config)
        for command in ("train", "alignment") if aligned else ("train",):
            if fault := self._process([command, str(folder)], log, cell.threads):
                return f"{cell}: {fault}"
        if self._stopping():
            return None
        with self._alone:
            row = self.results.add(cell, folder)
            if not self.keep:
                for path in (folder / name for name in _REMOVED):
                    shutil.rmtree(path, ignore_errors=True)
            finished = sum(self.results.of(one) is not None for one in self.cells)
            accuracy = "" if row["accuracy"] is None else f" accuracy {row['accuracy']:.3f},"
            seconds = f"{row['training_seconds']:.0f} s of training"
            self.say(f"[{finished}/{len(self.cells)}] {cell}:{accuracy} {seconds}")
        return None

    def _stopping(self) -> bool:
        return self.stop.signal_name is not None

    def _shared(self, cell: Cell) -> Path:
        return self.work / "first-stages" / cell.first_stage

    def _opened(
        self, cell: Cell, folder: Path, *, force: bool = False
    ) -> AbstractContextManager[OpenRun]:
        """Open the cell's run. Raises UsageError if the folder holds another run."""
        return open_run(
            self.base,
            overrides=cell.overrides,
            run_dir=folder,
            force=force,
            progress=Progress(Console(quiet=True)),
        )

    def _process(self, words: Sequence[str], log: Path, threads: int) -> str | None:
        """Run a mugrpo command to its end. Return its error, or None.

        A signal to this process is passed on to the command, so that the run is saved.
        """
        with open(log, "ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "mugrpo", *words],
                stdout=file,
                stderr=file,
                env=passed_on(OMP_NUM_THREADS=str(threads)),
                start_new_session=True,  # Ctrl-C must not reach it directly, only from here
            )
            terminated = False
            while True:
                try:
                    status = process.wait(_LOOK)
                    break
                except subprocess.TimeoutExpired:
                    if self._stopping() and not terminated:
                        process.terminate()
                        terminated = True
        if status in (0, LEARNED_NOTHING) or self._stopping():
            return None
        return f"{_last_line(log)} ({log})"


def share_first_stage(source: RunDir, target: RunDir) -> None:
    """Give `target` the rollouts and scores of `source`'s first stage, without copying them."""
    for kind in _SHARED:
        folder = target.shards(0, kind)
        if not folder.exists():
            with publish_folder(folder) as unfinished:
                for file in source.shards(0, kind).iterdir():
                    _link(file, unfinished / file.name)


def _link(source: Path, target: Path) -> None:
    """Link a file, which is never written to again, or copy it if it cannot be linked."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
