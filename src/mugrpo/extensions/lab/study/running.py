"""Run a study's cells: as many at once as there are cores for their threads.

    WORK/cells/CELL/          a cell's run, with its output in CELL.log

A cell is a run like any other: it can be inspected, and resumed after a kill. A finished cell
becomes a row of the study's table. Its rollouts, checkpoints and evaluations are then removed,
unless they are to be kept.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from rich.console import Console

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.extensions.lab.alignment import can_align
from mugrpo.extensions.lab.study.outcome import Results
from mugrpo.extensions.lab.study.spec import Cell
from mugrpo.processes.lifetime import StopFlag, passed_on
from mugrpo.run.opening import open_run
from mugrpo.run.progress import Progress
from mugrpo.tools.summary import LEARNED_NOTHING

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

        Raises Interrupted after a signal, once the running cells are saved.
        """
        pending = [cell for cell in self.cells if self.results.of(cell) is None]
        self.say(f"{len(self.cells) - len(pending)} of {len(self.cells)} cells are finished")
        with ThreadPoolExecutor(at_once) as pool:
            faults = list(pool.map(self._fault, pending))
        self.stop.check()
        return [fault for fault in faults if fault]

    def _fault(self, cell: Cell) -> str | None:
        """Run a cell. Return what failed, so that other cells can still run, or None."""
        try:
            return self._run(cell)
        except (UsageError, RunStopped) as error:
            return f"{cell}: {error}; to start it from scratch, remove its folder in {self.work}"

    def _run(self, cell: Cell) -> str | None:
        """Run a cell to its end and put its row into the table. Return what failed, or None."""
        if self._stopping():
            return None
        folder = self.work / "cells" / cell.name
        quiet = Progress(Console(quiet=True))
        with (
            self._alone,  # it refuses a folder that holds another run
            open_run(self.base, overrides=cell.overrides, run_dir=folder, progress=quiet),
        ):
            pass
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


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
