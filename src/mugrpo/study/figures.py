"""A study's pictures: static SVG files, in the reader's light or dark.

Every seed is drawn beside the mean and its 95 % interval: runs that either learn or collapse have a
mean that none of them has.
"""

from __future__ import annotations

from collections.abc import Sequence

from mugrpo.report.charts import Axis, Chart
from mugrpo.report.figures import run_css
from mugrpo.report.markup import Markup, join, style_sheet, tag
from mugrpo.report.scale import Scale, domain, tick_labels
from mugrpo.study.intervals import estimate, geometric
from mugrpo.study.outcome import Row, quantity, rows_of
from mugrpo.study.spec import Figure, Study, arms

NAMES = {
    "accuracy": "accuracy on held-out problems",
    "best": "best accuracy",
    "mean": "mean accuracy over the run",
    "worst_fall": "worst fall of accuracy",
    "stages": "refreshes",
    "training_seconds": "seconds of training",
    "vetoed_fraction": "share of tokens vetoed",
    "ratio/negative/max": "largest ratio, A < 0",
    "kl_behavior": "KL(β‖π)",
    "tv_token": "total variation, token",
}

_OF_ONE = ("accuracy", "best", "mean")
_PANEL, _ALONE, _HEIGHT = 400, 640, 240
_SHADES = 5  # lines whose intervals are shaded
_HEAD, _LEGEND = 44, 22
_ROW, _LABELS, _DOTS = 24, 300, 460
_CHARACTER = 6.6


def curves(study: Study, figure: Figure, rows: Sequence[Row]) -> Markup:
    """A quantity at every evaluation: seeds thin, their mean thick, its interval shaded.

    Of many lines nobody could tell the shades apart: then the seeds alone show the spread.
    """
    panels = list(study.axes[figure.panels]) if figure.panels else [""]
    lines = list(study.axes[figure.lines]) if figure.lines else [""]
    y = _axis(figure, [point.get(figure.of) for row in rows for point in row["curve"]])
    parts = []
    size = _PANEL if len(panels) > 1 else _ALONE
    for number, panel in enumerate(panels):
        chart = Chart(Axis("updates"), y, size, _HEIGHT)
        for hue, line in enumerate(lines):
            arm = {a: v for a, v in ((figure.panels, panel), (figure.lines, line)) if a}
            chosen = rows_of(rows, arm)
            runs = [row["curve"] for row in chosen]
            _draw_line(chart, runs, figure.of, run_css(hue), shaded=len(lines) <= _SHADES)
        at = (number * size, _HEAD + 16)
        if panel:
            name = f"{figure.panels}: {panel}"
            parts.append(tag("text", name, x=at[0] + 46, y=_HEAD + 8, class_="panel"))
        parts.append(chart.svg(f"{figure.title} {panel}", at))
    width = max(size * len(panels), _ALONE)
    top = _HEAD + 16 + _HEIGHT + 14
    legend, below = _legend(lines, width, top) if figure.lines else (None, top)
    return _picture(figure.title, width, below, *parts, legend)


def values(study: Study, figure: Figure, rows: Sequence[Row]) -> Markup:
    """One number a cell: a row an arm, its seeds as dots, mean and interval as a bar."""
    chosen = arms(study)
    axis = _axis(figure, [quantity(row, figure.of) for row in rows])
    assert axis.low is not None and axis.high is not None
    scale = Scale(axis.low, axis.high, _LABELS, _LABELS + _DOTS, figure.log)
    bottom = _HEAD + _ROW * len(chosen) + 4
    parts = []
    ticks = scale.ticks(6)
    for tick, label in zip(ticks, tick_labels(ticks, log=figure.log), strict=True):
        at = scale(tick)
        parts.append(tag("path", d=f"M{at:.1f} {_HEAD}V{bottom}", class_="grid"))
        parts.append(tag("text", label, x=at, y=bottom + 16, class_="tick middle"))
    unit = named(figure.of)
    parts.append(tag("text", unit, x=_LABELS + _DOTS, y=bottom + 34, class_="unit end"))
    hues = {label: run_css(hue) for hue, label in enumerate(study.axes.get(figure.lines or "", {}))}
    for place, arm in enumerate(chosen):
        y = _HEAD + _ROW * place + _ROW / 2
        css = hues.get(arm.get(figure.lines or "", ""), run_css(0))
        of_arm = rows_of(rows, arm)
        parts.append(tag("text", ", ".join(arm.values()), x=_LABELS - 14, y=y + 4, class_="end"))
        parts.append(_estimated([quantity(r, figure.of) for r in of_arm], scale, y, css))
    return _picture(figure.title, _LABELS + _DOTS + 30, bottom + 44, *parts)


def _axis(figure: Figure, numbers: Sequence[float | None]) -> Axis:
    """As wide as what was seen: the interval of two seeds may go to the moon."""
    known = [n for n in numbers if n is not None and (n > 0 or not figure.log)]
    low, high = (0.0, 1.0) if figure.of in _OF_ONE else domain(known, log=figure.log)
    return Axis(named(figure.of), figure.log, low, high)


def _estimated(numbers: Sequence[float | None], scale: Scale, y: float, css: str) -> Markup:
    known = [n for n in numbers if n is not None and (n > 0 or not scale.log)]
    parts = [
        tag("circle", cx=scale(value), cy=y, r=2.6, class_=f"dot {css}", opacity=0.45)
        for value in known
    ]
    if found := _interval(known, scale.log):
        middle, low, high = found
        ends = [scale(max(scale.low, low)), scale(min(scale.high, high))]
        path = f"M{ends[0]:.1f} {y:.1f}H{ends[1]:.1f}"
        parts.append(tag("path", d=path, class_=f"line {css}"))
        tall = f"M{scale(middle):.1f} {y - 6:.1f}v12"
        parts.append(tag("path", d=tall, class_=f"line thick {css}"))
    return join(parts)


def _draw_line(
    chart: Chart, runs: Sequence[Sequence[Row]], key: str, css: str, *, shaded: bool
) -> None:
    """Every run, their mean and its interval; what a run lacks at an update, it is left out of."""
    for run in runs:
        chart.line([p["update"] for p in run], [p.get(key) for p in run], css=f"faint {css}")
    updates = sorted({point["update"] for run in runs for point in run})
    at = {u: [p.get(key) for run in runs for p in run if p["update"] == u] for u in updates}
    ends = {u: found for u, values in at.items() if (found := _interval(values, chart.y.log))}
    if shaded:
        lows, highs = [low for _, low, _ in ends.values()], [high for *_, high in ends.values()]
        chart.band(list(ends), lows, highs, css=css)
    chart.line(list(ends), [middle for middle, *_ in ends.values()], css=f"thick {css}")


def _interval(values: Sequence[float | None], log: bool) -> tuple[float, float, float] | None:
    """Mean and the ends of its interval; on a logarithmic axis those of the logarithms."""
    if log:
        ends = geometric(values)
        return ends[:3] if ends else None
    found = estimate(values)
    if found is None:
        return None
    half = found.half_width or 0.0
    return found.mean, found.mean - half, found.mean + half


def _legend(labels: Sequence[str], width: float, top: float) -> tuple[Markup, float]:
    """Samples with their words, in as many lines as they need; and where the next thing may be."""
    parts, x, y = [], 46.0, top
    for hue, label in enumerate(labels):
        wide = 34 + len(label) * _CHARACTER + 20
        if x > 46 and x + wide > width:
            x, y = 46.0, y + _LEGEND
        sample = f"M{x:.1f} {y - 4:.1f}h22"
        parts.append(tag("path", d=sample, class_=f"line thick {run_css(hue)}"))
        parts.append(tag("text", label, x=x + 30, y=y, class_="words"))
        x += wide
    return join(parts), y + _LEGEND


def _picture(title: str, width: float, height: float, *parts: Markup | None) -> Markup:
    style = style_sheet("charts.css") + (
        "svg{font-family:system-ui,'Segoe UI',Roboto,Arial,sans-serif}"
        ".title{font-size:15px;font-weight:600;fill:var(--ink)}"
        ".panel{font-weight:600;fill:var(--ink)}.words{fill:var(--ink)}"
    )
    return tag(
        "svg",
        tag("style", Markup(style)),
        tag("rect", width=width, height=height, fill="var(--page)"),
        tag("text", title, x=14, y=24, class_="title"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=width,
        height=height,
        role="img",
        aria_label=title,
    )


def named(key: str) -> str:
    return NAMES.get(key, key.replace("_", " "))
