"""Averages of benchmark suites as lines with the bands of their 95 % intervals."""

from collections.abc import Sequence
from functools import partial

from markupsafe import Markup

from mugrpo.extensions.evals.witness import SUITE
from mugrpo.report.charts import Axis
from mugrpo.report.figures import drawn, lines_of, points_of, update_chart
from mugrpo.report.read import RunData


def section(runs: Sequence[RunData]) -> tuple[str, list[Markup | None]]:
    """Return the report's section on suites: avg@k of each against updates, in training."""
    figures = []
    band, note = ("accuracy_low", "accuracy_high"), "avg@k; shaded: 95 % intervals"
    for kind in dict.fromkeys(kind for run in runs for kind in run.kinds):
        if kind.startswith(SUITE):
            lines = lines_of(runs, partial(points_of, kind), {"accuracy": "avg@k"}, band)
            picture = update_chart(runs, Axis("avg@k", low=0), lines)
            figures.append(drawn(f"{kind.removeprefix(SUITE)} against updates", note, picture))
    return "Benchmarks", figures
