"""Averages of benchmark suites as lines with the bands of their 95 % intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from markupsafe import Markup

from mugrpo.extensions.evals.witness import SUITE
from mugrpo.report.charts import Axis
from mugrpo.report.figures import drawn, lines_of, points_of, update_chart
from mugrpo.report.read import RunData


def section(runs: Sequence[RunData]) -> tuple[str, list[Markup | None]]:
    """Return the title and the figures of the report's section on suites."""
    return "Benchmarks", list(suite_figures(runs))


def suite_figures(runs: Sequence[RunData]) -> Iterator[Markup | None]:
    """Yield avg@k of each suite against updates, as measured in training."""
    band, note = ("accuracy_low", "accuracy_high"), "avg@k; shaded: 95 % intervals"
    for kind in dict.fromkeys(kind for run in runs for kind in run.kinds):
        if kind.startswith(SUITE):
            lines = lines_of(runs, partial(points_of, kind), {"accuracy": "avg@k"}, band)
            picture = update_chart(runs, Axis("avg@k", low=0), lines)
            yield drawn(f"{kind.removeprefix(SUITE)} against updates", note, picture)
