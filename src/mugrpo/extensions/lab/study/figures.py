"""A study's pictures: static SVG files, for light and dark pages.

Every seed is drawn beside the mean and its 95 % interval: if runs either learn or collapse, no run
is near their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from mugrpo.extensions.lab.study.intervals import estimate, geometric
from mugrpo.extensions.lab.study.outcome import Row, quantity, rows_of
from mugrpo.extensions.lab.study.spec import Figure, Study, arms
from mugrpo.report.charts import Axis, Chart, Line, color, hue, inline, line_chart, words

NAMES = {
    "accuracy": "accuracy on held-out problems",
    "best": "best accuracy",
    "mean": "mean accuracy over the run",
    "worst_fall": "worst fall of accuracy",
    "greedy": "greedy accuracy",
    "entropy": "entropy, nats per token",
    "stages": "refreshes",
    "training_seconds": "seconds of training",
    "vetoed_fraction": "share of tokens vetoed",
    "ratio/negative/max": "largest ratio, A < 0",
    "kl_behavior": "KL(β‖π)",
    "tv_token": "total variation, token",
}

_SHARES = ("accuracy", "best", "mean")
_PANEL, _ALONE, _HEIGHT = 340, 580, 230
_SHADES = 5  # with more lines, intervals are not shaded
_ROW, _DOTS = 24, 440


def draw(study: Study, figure: Figure, rows: Sequence[Row]) -> Chart:
    """Return the figure under its title."""
    chart = curves(study, figure, rows) if figure.kind == "curves" else values(study, figure, rows)
    return chart.properties(title=figure.title, padding=14)


def curves(study: Study, figure: Figure, rows: Sequence[Row]) -> Chart:
    """Return lines of a quantity over updates: seeds thin, their mean thick, its interval shaded.

    With more than five lines, none is shaded: overlapping shades cannot be told apart.
    """
    panels = list(study.axes[figure.panels]) if figure.panels else [""]
    lines = list(study.axes[figure.lines]) if figure.lines else [""]
    y = _axis(figure, [point.get(figure.of) for row in rows for point in row["curve"]])
    charts = []
    for panel in panels:
        drawn: list[Line] = []
        for index, line in reversed(list(enumerate(lines))):  # the first on top
            arm = {a: v for a, v in ((figure.panels, panel), (figure.lines, line)) if a}
            runs = [row["curve"] for row in rows_of(rows, arm)]
            drawn += _lines(runs, figure, words(line), index, len(lines) <= _SHADES)
        width = _PANEL if len(panels) > 1 else _ALONE
        x = Axis("updates", low=0)
        size: dict[str, Any] = {"width": width, "height": _HEIGHT}
        if picture := line_chart(x, y, drawn, **size):
            chart = alt.layer(*picture.layers[:-1]).properties(**size)
            charts.append(chart.properties(title=f"{figure.panels}: {panel}") if panel else chart)
    return alt.hconcat(*charts)


def values(study: Study, figure: Figure, rows: Sequence[Row]) -> Chart:
    """Return one number per cell: a row per arm, with a dot per seed and the mean's interval."""
    axis = _axis(figure, [quantity(row, figure.of) for row in rows])
    hues = {label: hue(i) for i, label in enumerate(study.axes.get(figure.lines or "", {}))}
    dots, bars, labels = [], [], []
    for arm in arms(study):
        label = words(", ".join(arm.values()))
        about = {"arm": label, "hue": color(hues.get(arm.get(figure.lines or "", ""), "run-0"))}
        labels.append(label)
        known = _known([quantity(row, figure.of) for row in rows_of(rows, arm)], figure.log)
        dots += [{**about, "x": value} for value in known]
        if interval := _interval(known, figure.log):
            middle, low, high = interval
            bars.append({**about, "x": middle, "low": low, "high": high})
    shown = alt.Axis(title=None, domain=False, ticks=False, grid=False, labelLimit=320)
    y = alt.Y("arm:N", sort=None, axis=shown, scale=alt.Scale(domain=labels))
    shade = alt.Color("hue:N", scale=None)
    seed = alt.Chart(inline(dots), name="seeds").mark_circle(size=24, opacity=0.45)
    mean = alt.Chart(inline(bars), name="means")
    layers = [
        seed.encode(axis.channel(alt.X, "x", grid=True), y, color=shade),
        mean.properties(name="intervals")
        .mark_rule(strokeWidth=1.6)
        .encode(axis.channel(alt.X, "low"), y, x2="high:Q", color=shade),
        mean.mark_tick(thickness=2.2, size=13).encode(axis.channel(alt.X, "x"), y, color=shade),
    ]
    return alt.layer(*layers).properties(width=_DOTS, height=_ROW * len(labels))


def named(key: str) -> str:
    """Return a quantity's name for readers."""
    return NAMES.get(key, key.replace("_", " "))


def _axis(figure: Figure, numbers: Sequence[float | None]) -> Axis:
    """Return an axis that spans the values, not the intervals: with two seeds, those are huge."""
    known = _known(numbers, figure.log)
    if figure.of in _SHARES or not known:
        return Axis(named(figure.of), figure.log, *(() if figure.log else (0.0, 1.0)))
    low, high = min(known), max(known)
    if figure.log:
        room = (high / low) ** 0.06 * 1.1
        return Axis(named(figure.of), True, low / room, high * room)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Axis(named(figure.of), False, low - room, high + room)


def _known(numbers: Sequence[float | None], log: bool) -> list[float]:
    return [n for n in numbers if n is not None and (n > 0 or not log)]


def _lines(
    runs: Sequence[Sequence[Row]], figure: Figure, line: str, index: int, shaded: bool
) -> list[Line]:
    """Return a line of every run, of their mean, and the mean's interval if `shaded`.

    A run that lacks the number at an update is left out of the mean there.
    """
    key = figure.of
    updates = sorted({point["update"] for run in runs for point in run})
    at = {u: [p.get(key) for run in runs for p in run if p["update"] == u] for u in updates}
    ends = {u: interval for u, values in at.items() if (interval := _interval(values, figure.log))}
    middles, lows, highs = ([one[place] for one in ends.values()] for place in range(3))
    seeds = [
        Line([p["update"] for p in run], [p.get(key) for p in run], line, index, faint=True)
        for run in runs
    ]
    band = Line(list(ends), lows, line, index, uppers=highs)
    return [*([band] if shaded else []), *seeds, Line(list(ends), middles, line, index)]


def _interval(values: Sequence[float | None], log: bool) -> tuple[float, float, float] | None:
    """Return (mean, low, high), computed on logarithms if `log`, or None without values."""
    if log:
        ends = geometric(values)
        return ends[:3] if ends else None
    mean = estimate(values)
    if mean is None:
        return None
    half = mean.half_width or 0.0
    return mean.mean, mean.mean - half, mean.mean + half
