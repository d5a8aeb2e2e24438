"""Averages of benchmark suites as lines with the bands of their 95 % intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from mugrpo.report.charts import Axis
from mugrpo.report.figures import banded, drawn, run_label, update_chart
from mugrpo.report.read import RunData, column


def section(runs: Sequence[RunData]) -> tuple[str, list[Markup | None]]:
    """Return the title and the figures of the report's section on suites."""
    return "Benchmarks", list(suite_figures(runs))


def suite_figures(runs: Sequence[RunData]) -> Iterator[Markup | None]:
    """Yield avg@k of each suite against updates, as measured in training."""
    for name in dict.fromkeys(name for run in runs for name in run.suites):
        traces = []
        for index, run in enumerate(runs):
            lines = run.suites.get(name, [])
            xs = [float(line["update"]) for line in lines]
            columns = [column(lines, f"accuracy{end}") for end in ("", "_low", "_high")]
            traces += banded(xs, *columns, label=run_label(run, runs), series="avg@k", hue=index)
        picture = update_chart(runs, Axis("avg@k", low=0), traces, ends=True)
        yield drawn(f"{name} against updates", "avg@k; shaded: 95 % intervals", picture)
