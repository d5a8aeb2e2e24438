"""The command `mugrpo study`: run a study, or show its results."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from mugrpo.disk.errors import UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.extensions.lab.study.outcome import Results
from mugrpo.extensions.lab.study.page import RESULTS, compared, folder_of, table, write_page
from mugrpo.extensions.lab.study.running import Cells
from mugrpo.extensions.lab.study.spec import load_study
from mugrpo.processes.lifetime import StopFlag


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
        running = Cells(
            Path(study.base),
            cells,
            results,
            work,
            keep=keep,
            aligned="alignment" in study.columns,
            say=say,
            stop=stop,
        )
        try:
            failed = running.run(jobs or max(1, (os.cpu_count() or 1) // study.threads))
        finally:
            page = write_page(study, file, results.rows, len(cells)) if results.rows else None
    return page or file, failed


def show_study(file: Path) -> str:
    """Return the table of the finished cells, and their comparison with the baseline.

    Raises UsageError if no cell is finished.
    """
    study, cells = load_study(file)
    results = Results(folder_of(file) / RESULTS)
    if not results.rows:
        raise UsageError(f"no cell of {file} is finished; `mugrpo study run {file}` runs them")
    parts = [f"{study.title}: {len(results.rows)} of {len(cells)} runs", table(study, results.rows)]
    if study.baseline:
        name = ", ".join(study.baseline.values())
        parts += [f"Against {name}, seed by seed:", compared(study, results.rows)]
    return "\n\n".join(parts)
