"""A study's pictures: quantities over a run, numbers of its cells, and where their seconds go.

Every seed is drawn beside the mean and its 95 % interval: if runs either learn or collapse, no run
is near their mean.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import altair as alt

from mugrpo.extensions.lab.study.intervals import estimate, geometric
from mugrpo.extensions.lab.study.outcome import Row, quantity, rows_of
from mugrpo.extensions.lab.study.spec import Figure, Study, arms
from mugrpo.report.charts import (
    BAR,
    TIMES,
    Axis,
    Bar,
    Chart,
    Line,
    bar_layers,
    color,
    hue,
    line_chart,
    words,
)

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
    "ratio/negative/mean": "mean ratio, A < 0",
    "ratio/negative/max": "largest ratio, A < 0",
    "kl_behavior": "KL(β‖π)",
    "tv_token": "total variation, token",
}

_SPAN_0_TO_1 = ("accuracy", "best", "mean")
_PANEL, _HEIGHT = 340, 230
_SHADES = 5  # with more lines, intervals are not shaded
_ROW, _DOTS = 24, 440
_LETTER = 14  # pixels from one name to the next
_CHEAP, _DEAR = 0.1, 120.0  # seconds of a refresh
_REFRESHES = [
    {"x": 0.7, "text": "in process"},
    {"x": 2.0, "text": "a live vLLM"},
    {"x": 60.0, "text": "vLLM starts"},
]


def draw(study: Study, figure: Figure, rows: Sequence[Row]) -> Chart | None:
    """Return the figure under its title, or None if the runs that it shows have not ended."""
    kinds = {"curves": curves, "values": values, "time": times, "speedup": speedups}
    shown = [row for row in rows if not figure.seeds or row["seed"] in figure.seeds]
    chart: Chart | None = kinds[figure.kind](study, figure, shown)
    return chart.properties(title=figure.title, padding=14) if chart else None


def curves(study: Study, figure: Figure, rows: Sequence[Row]) -> Chart:
    """Return lines of a quantity over the runs: seeds thin, mean thick, its interval shaded.

    With more than five lines, none is shaded: overlapping shades cannot be told apart. Without
    panels, lines have their names at their ends.
    """
    panels = list(study.axes[figure.panels]) if figure.panels else [""]
    lines = _labels(study, figure) if figure.lines else [""]
    y = _axis(figure, [point.get(figure.of) for row in rows for point in row["curve"]])
    charts = []
    for panel in panels:
        drawn: list[Line] = []
        for index, line in reversed(list(enumerate(lines))):  # the first on top
            arm = {a: v for a, v in ((figure.panels, panel), (figure.lines, line)) if a}
            if runs := [row["curve"] for row in rows_of(rows, arm)]:
                label = words(figure.names.get(line, line))
                drawn += _lines(runs, figure, label, index, len(lines) <= _SHADES)
        width = _PANEL if len(panels) > 1 else figure.width
        x = Axis("updates" if figure.against == "updates" else "seconds of training", low=0)
        size: dict[str, Any] = {"width": width, "height": _HEIGHT}
        if picture := line_chart(x, y, drawn, live=False, legend=bool(panel), **size):
            layers = [*picture.layers[:-1], *([] if panel else [_names(drawn, y, width)])]
            chart = alt.layer(*layers).properties(**size)
            charts.append(chart.properties(title=f"{figure.panels}: {panel}") if panel else chart)
    return alt.hconcat(*charts)


def _labels(study: Study, figure: Figure) -> list[str]:
    """Return the values of the axis `figure.lines` that the figure shows."""
    shown = study.axes[figure.lines or ""]
    return [label for label in shown if label in (figure.arms or shown)]


def _names(lines: Sequence[Line], y: Axis, width: int) -> alt.Chart:
    """Return each line's name at its end. Names that would overlap move down."""
    assert y.low is not None and y.high is not None
    ends = {}
    for line in lines:
        if line.uppers is None and not line.faint and line.label:
            known = [value for value in line.ys if value is not None]
            share = (min(max(known[-1], y.low), y.high) - y.low) / (y.high - y.low)
            ends[line.label] = (_HEIGHT * (1 - share), color(hue(line.hue)))
    rows: list[dict[str, Any]] = []
    free = 0.0
    for label, (pixel, shade) in sorted(ends.items(), key=lambda end: end[1]):
        free = max(free, min(pixel, _HEIGHT - _LETTER * (len(ends) - len(rows) - 1)))
        rows.append({"label": label, "pixel": free, "hue": shade})
        free += _LETTER
    names: alt.Chart = (
        alt.Chart(alt.InlineData(values=rows), name="names")
        .mark_text(align="left", baseline="middle", fontSize=12)
        .encode(
            alt.Text("label:N"),
            x=alt.XValue(width + 6),
            y=alt.Y("pixel:Q", scale=None, axis=None),
            color=alt.Color("hue:N", scale=None),
        )
    )
    return names


def times(study: Study, figure: Figure, rows: Sequence[Row]) -> Chart | None:
    """Return a bar for each arm, divided into phases: mean seconds of its runs.

    Its name stands above it, with the number of its refreshes, and its accuracy at its end.
    """
    bars = list[Bar]()
    for arm in arms(study):
        of = rows_of(rows, arm)
        if not of or (figure.arms and arm.get(figure.lines or "") not in figure.arms):
            continue
        spent = {
            part: fmean(sum(row[f"seconds/{phase}"] for phase in phases) for row in of)
            for part, phases in TIMES.items()
        }
        head = f"{words(', '.join(arm.values()))}: {fmean(row['stages'] for row in of):g} refreshes"
        reached = estimate([row["accuracy"] for row in of])
        bars.append(Bar(head, spent, f"{reached.mean:.3f}" if reached else ""))
    if not bars:
        return None
    layers = bar_layers(Axis("seconds"), bars)[:-1]
    return alt.layer(*layers).properties(width=figure.width, height=BAR * len(bars))


def speedups(study: Study, figure: Figure, rows: Sequence[Row]) -> Chart | None:
    """Return how many times as fast arms are as the baseline, by the seconds that a refresh costs.

    The quotient is (T + n r) / (t + m r), with n and m refreshes of r seconds and T and t seconds
    of training besides them, means over the runs.
    """
    spent = {}
    for arm in arms(study):
        if runs := rows_of(rows, arm):
            besides = fmean(row["training_seconds"] - row["seconds/refresh"] for row in runs)
            refreshes = fmean(row["stages"] for row in runs)
            spent[", ".join(arm.values())] = (besides, refreshes)
    if not (of := spent.get(", ".join(study.baseline[0].values()))):
        return None
    fixed, many = of
    xs = [_CHEAP * (_DEAR / _CHEAP) ** (i / 60) for i in range(61)]
    drawn = [
        Line(xs, [(fixed + many * r) / (besides + few * r) for r in xs], words(label), index)
        for index, label in enumerate(_labels(study, figure))
        if label in spent
        for besides, few in [spent[label]]
    ]
    if not drawn:
        return None
    most = max(value for line in drawn for value in line.ys if value is not None)
    x, y = Axis("seconds of a refresh", log=True), Axis("times as fast", low=0, high=1.05 * most)
    picture = line_chart(x, y, drawn, live=False, legend=False, width=figure.width, height=_HEIGHT)
    assert picture
    marks = alt.Chart(alt.InlineData(values=_REFRESHES), name="refreshes")
    texts = marks.properties(name="costs").mark_text(
        align="left", baseline="bottom", dx=4, y=_HEIGHT - 4
    )
    where = x.channel(alt.X, "x")
    layers = [
        marks.mark_rule(strokeDash=[2, 3], opacity=0.6).encode(where),
        texts.encode(where, alt.Text("text:N")),
        *picture.layers[:-1],
        _names(drawn, y, figure.width),
    ]
    return alt.layer(*layers).properties(width=figure.width, height=_HEIGHT)


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
    seed = alt.Chart(alt.InlineData(values=dots), name="seeds").mark_circle(size=24, opacity=0.45)
    mean = alt.Chart(alt.InlineData(values=bars), name="means")
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
    name = key.removeprefix("start/")
    before = "" if name == key else " before training"
    return NAMES.get(name, name.replace("_", " ")) + before


def _axis(figure: Figure, numbers: Sequence[float | None]) -> Axis:
    """Return an axis that spans the values, not the intervals: with two seeds, those are huge."""
    known = _known(numbers, figure.log)
    if figure.of in _SPAN_0_TO_1 or not known:
        top = 1.0 if not known or max(known) > 0.5 else 1.2 * max(known)
        return Axis(named(figure.of), figure.log, *(() if figure.log else (0.0, top)))
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

    A run that lacks the number at an update is left out of the mean there. Against seconds, the
    mean of an update is drawn at the mean of its seconds.
    """
    key, x = figure.of, "update" if figure.against == "updates" else "seconds"
    updates = sorted({point["update"] for run in runs for point in run})
    at = {u: [p.get(key) for run in runs for p in run if p["update"] == u] for u in updates}
    ends = {u: interval for u, values in at.items() if (interval := _interval(values, figure.log))}
    places = [fmean(p[x] for run in runs for p in run if p["update"] == u) for u in ends]
    middles, lows, highs = ([one[i] for one in ends.values()] for i in range(3))
    seeds = [
        Line([p[x] for p in run], [p.get(key) for p in run], line, index, faint=True)
        for run in runs
    ]
    band = Line(places, lows, line, index, uppers=highs)
    return [*([band] if shaded else []), *seeds, Line(places, middles, line, index)]


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
