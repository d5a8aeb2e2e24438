"""Draw runs into one HTML file that needs no network. Drawing needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mugrpo.disk.publishing import publish_file

__all__ = ["write_report"]


def write_report(runs: Sequence[Path], out: Path | None = None, every: int | None = None) -> Path:
    """Draw the runs at `runs` into one file, and return its path.

    The default is RUN/report.html for one run. Several runs share each chart, by default in
    report.html in the working directory. A browser reloads the page every `every` seconds.
    Raises UsageError if a path is not a run.
    """
    from mugrpo.report.page import page  # the charts' libraries take a second
    from mugrpo.report.read import read_runs

    text = page(read_runs(runs), every)
    target = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    with publish_file(target) as file:
        file.write(text.encode("utf-8"))
    return target
