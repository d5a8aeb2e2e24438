"""The command `mugrpo study`: run a study's cells, as many at once as the cores allow.

    WORK/cells/CELL/          a cell's run, with its output in CELL.log
    WORK/starts/              evaluations before training, which cells share (see `starts`)

A cell is a run like any other: it can be inspected, and resumed after a kill. A finished cell
becomes a row of the study's table. Its rollouts, checkpoints and evaluations are then removed,
unless they are to be kept.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from rich.console import Console

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.extensions.lab.alignment import can_align
from mugrpo.extensions.lab.study.outcome import Results
from mugrpo.extensions.lab.study.page import RESULTS, compared, folder_of, table, write_page
from mugrpo.extensions.lab.study.spec import Cell, load_study
from mugrpo.extensions.lab.study.starts import keep_start, take_start
from mugrpo.processes.lifetime import StopFlag, passed_on
from mugrpo.report.summary import LEARNED_NOTHING
from mugrpo.run.opening import open_run
from mugrpo.run.progress import Progress

_REMOVED = ("stages", "checkpoints", "evaluations", "benchmarks", "alignment")
_LOOK = 0.5  # seconds between checks of the stop flag


@dataclass
class Cells:
    """The cells of a study, which run in `work` and put their rows into `results`."""

    base: Path
    cells: Sequence[Cell]
    results: Results
    work: Path
    keep: bool
    aligned: bool
    say: Callable[[str], None]
    stop: StopFlag

    def __post_init__(self) -> None:
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
        """Run a cell. Report a failure at once, as others may run for hours, and return it."""
        try:
            fault = self._run(cell)
        except (UsageError, RunStopped) as error:
            fault = (
                f"{cell}: {error}; `mugrpo train {self._folder(cell)}` takes such options and "
                "resumes this cell alone; remove that folder to start again"
            )
        if fault:
            self.say(fault)
        return fault

    def _run(self, cell: Cell) -> str | None:
        """Run a cell to its end and put its row into the table. Return what failed, or None."""
        if self._stopping():
            return None
        folder = self._folder(cell)
        quiet = Progress(Console(quiet=True))
        with (
            self._alone,  # it refuses a folder that holds another run
            open_run(self.base, overrides=cell.overrides, run_dir=folder, progress=quiet) as run,
        ):
            take_start(self.work / "starts", run, cell.threads)
        log = folder.with_name(f"{folder.name}.log")
        aligned = self.aligned and can_align(cell.config)
        for command in ("train", "alignment") if aligned else ("train",):
            if fault := self._process([command, str(folder)], log, cell.threads):
                return f"{cell}: {fault}"
        if self._stopping():
            return None
        with self._alone:
            row = self.results.add(cell, folder)
            keep_start(self.work / "starts", RunDir(folder), cell.threads)
            if not self.keep:
                for path in (folder / name for name in _REMOVED):
                    shutil.rmtree(path, ignore_errors=True)
            finished = sum(self.results.of(one) is not None for one in self.cells)
            accuracy = "" if row["accuracy"] is None else f" accuracy {row['accuracy']:.3f},"
            seconds = f"{row['training_seconds']:.0f} s of training"
            self.say(f"[{finished}/{len(self.cells)}] {cell}:{accuracy} {seconds}")
        return None

    def _folder(self, cell: Cell) -> Path:
        return self.work / "cells" / cell.name

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
        lines = log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"]
        if status < 0:  # it could say nothing itself
            lines.append(
                f"{signal.Signals(-status).name} ended it after: {lines[-1]}; free memory if that "
                "ran out, and run the study again"
            )
        return f"{lines[-1]} ({log})"


def run_study(
    file: Path,
    work: Path,
    jobs: int | None,
    *,
    keep: bool,
    say: Callable[[str], None],
    stop: StopFlag,
) -> tuple[Path, list[str]]:
    """Run the study's missing cells and write its page.

    Returns the path of the page (of the study's file if there are no results) and a sentence per
    failure. Raises UsageError if the file is bad, if `jobs` is below 1, if stored results were made
    with other options, or if another process works in `work`; Interrupted after a signal.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs {jobs}: at least one cell must run at once; name 1 or more")
    study, cells = load_study(file)
    results = Results(folder_of(file) / RESULTS)
    with RunDir(work).locked():
        aligned = "alignment" in study.columns
        running = Cells(Path(study.base), cells, results, work, keep, aligned, say, stop)
        try:
            failed = running.run(jobs or max(1, (os.cpu_count() or 1) // study.threads))
        finally:
            page = write_page(study, file, results.rows, len(cells)) if results.rows else None
    return page or file, failed


def show_study(file: Path) -> str:
    """Return the table of the finished cells and their comparisons, and draw the page again.

    Raises UsageError if no cell is finished.
    """
    study, cells = load_study(file)
    results = Results(folder_of(file) / RESULTS)
    if not results.rows:
        raise UsageError(f"no cell of {file} is finished; `mugrpo study run {file}` runs them")
    parts = [f"{study.title}: {len(results.rows)} of {len(cells)} runs", table(study, results.rows)]
    parts += [compared(study, results.rows)] if study.baseline else []
    parts += [f"page: {write_page(study, file, results.rows, len(cells))}"]
    return "\n\n".join(parts)
