"""Charts of a mixture's sources, and of the problems drawn by difficulty."""

from __future__ import annotations

from collections.abc import Sequence

from mugrpo.report.axes import Axis
from mugrpo.report.charts import Trace, words
from mugrpo.report.figures import drawn, reward_steps, run_hue, run_label, update_chart
from mugrpo.report.markup import Markup
from mugrpo.report.read import RunData, column

_SOURCES = (  # kind of the lines, prefix of their keys, title, note
    ("evaluation", "accuracy/", "Accuracy", "share of right responses to its held-out problems"),
    ("refresh", "reward/", "Reward", "mean over its rollouts of the stage"),
    ("refresh", "share/", "Share of rollouts", "of the stage"),
)
_DRAWN = (
    ("drawn_solve_rate", "Solve rate of the problems drawn", "mean of what was known of them"),
    ("problems_excluded", "Problems passed over", "in each stage, because of difficulty"),
)


def source_figures(runs: Sequence[RunData]) -> list[Markup | None]:
    """Return charts of each source's accuracy, reward and share, then of what a stage drew.

    The sources of a single run share a chart. Those of several runs have one each.
    """
    charts = []
    for kind, prefix, title, note in _SOURCES:
        keys = list(dict.fromkeys(key for run in runs for key in run.keys(kind, prefix)))
        parts = [keys] if len(runs) == 1 else [[key] for key in keys]
        for part in filter(None, parts):
            name = "" if len(runs) == 1 else f": {part[0].removeprefix(prefix)}"
            charts.append(_chart(runs, kind, f"{title} by source{name}", note, part, prefix))
    for key, title, note in _DRAWN:
        charts.append(_chart(runs, "refresh", title, note, [key], key))
    return charts


def _chart(
    runs: Sequence[RunData], kind: str, title: str, note: str, keys: Sequence[str], prefix: str
) -> Markup | None:
    traces = []
    for index, run in reversed(list(enumerate(runs))):
        for hue, key in enumerate(keys):
            xs, ys = (
                ([float(line["update"]) for line in run.evaluations], column(run.evaluations, key))
                if kind == "evaluation"
                else reward_steps(run, key)
            )
            color = run_hue(index if len(runs) > 1 else hue)
            label = words(key.removeprefix(prefix))
            traces.append(Trace(xs, ys, run_label(run, runs), label, color, "thick"))
    return drawn(
        words(title),
        note,
        update_chart(runs, Axis("mean" if kind == "refresh" else "accuracy"), traces),
    )
