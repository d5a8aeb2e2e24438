"""Benchmark suites that a run measured during training: their averages against updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mugrpo.report.axes import Axis
from mugrpo.report.charts import Trace
from mugrpo.report.figures import drawn, run_hue, run_label, update_chart
from mugrpo.report.markup import Markup
from mugrpo.report.read import RunData, column


def suite_figures(runs: Sequence[RunData]) -> Iterator[Markup | None]:
    """Yield avg@k of each suite against updates, with the band of its 95 % intervals."""
    for name in dict.fromkeys(name for run in runs for name in run.suites):
        traces = []
        for index, run in enumerate(runs):
            lines = run.suites.get(name, [])
            xs = [float(line["update"]) for line in lines]
            mean, low, high = (column(lines, f"accuracy{end}") for end in ("", "_low", "_high"))
            label, hue = run_label(run, runs), run_hue(index)
            traces += [
                Trace(xs, low, label, "95 % interval", hue, "band", high),
                Trace(xs, mean, label, "avg@k", hue, "thick"),
            ]
        picture = update_chart(runs, Axis("avg@k", low=0, high=1), traces, ends=True)
        yield drawn(f"{name} against updates", "avg@k; shaded: 95 % intervals", picture)
