"""Averages of benchmark suites as lines with the bands of their 95 % intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mugrpo.report.axes import Axis
from mugrpo.report.charts import Trace, Values
from mugrpo.report.figures import drawn, run_hue, run_label, update_chart
from mugrpo.report.markup import Markup
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


def banded(
    xs: Sequence[float],
    means: Values,
    lows: Values,
    highs: Values,
    *,
    label: str,
    series: str,
    hue: int,
) -> list[Trace]:
    """Return the band of 95 % intervals and the line of `means`, called `series`, above it.

    They belong to the run or result `label`, the `hue`-th in the chart.
    """
    color = run_hue(hue)
    return [
        Trace(xs, lows, label, "95 % interval", color, "band", highs),
        Trace(xs, means, label, series, color, "thick"),
    ]
