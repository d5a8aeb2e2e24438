"""Charts in Altair's grammar: lines and bands, with legends that switch them on and off.

Colors are the variables of colors.css, so that one chart suits a light page, a dark page and paper.
None in a series is a gap, and so is a value that a logarithmic axis cannot show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import altair as alt

from mugrpo.report.axes import LEAST, TICK, Axis, log_ticks, with_room, x_channel, y_channel
from mugrpo.report.markup import cut, visible
from mugrpo.report.thinning import Point, envelope, thinned

Values = Sequence[float | None]
Looks = Mapping[str, Mapping[str, Any]]  # label of a legend -> channel -> value

_COLUMNS = 160  # if a chart has more points, each column shows the least and the greatest
_LONGEST_LABEL = 40
_CHARACTER = 6.6  # pixels, on the generous side
_PHONE = 370  # pixels that a legend must fit into
_STYLES: dict[str, dict[str, Any]] = {
    "dashed": {"strokeDash": [6, 4]},
    "dotted": {"strokeDash": [1, 3.5]},
    "thick": {"strokeWidth": 2.2},
    "thin": {"strokeWidth": 1.0},
    "faint": {"strokeWidth": 1.0, "opacity": 0.35},
    "band": {"strokeWidth": 8.0, "opacity": 0.17},
}
_PLAIN = {"strokeDash": [1, 0], "strokeWidth": 1.6, "opacity": 1.0}


@dataclass(frozen=True)
class Trace:
    """A line through (xs, ys), or the band between `ys` and `uppers`.

    `color` belongs to the run if several are compared, else to the series. `style` belongs to the
    series: any of "thick", "thin", "faint", "band", "dashed" and "dotted".
    """

    xs: Sequence[float]
    ys: Values
    run: str = ""
    series: str = ""
    color: str = "run-0"
    style: str = ""
    uppers: Values | None = None


@dataclass(frozen=True)
class Picture:
    """A chart: its layers from back to front, and the layers that only a mouse uses."""

    layers: Sequence[alt.Chart]
    width: int = 400
    height: int = 220
    hover: Sequence[alt.Chart] = field(default_factory=list)


def line_chart(
    x: Axis,
    y: Axis,
    traces: Sequence[Trace],
    *,
    under: Sequence[alt.Chart] = (),
    width: int = 400,
    height: int = 220,
    ends: bool = False,
    live: bool = True,
    legend: int = _PHONE,
) -> Picture | None:
    """Return the traces as a picture, the last one on top, or None if they have no values.

    With `ends`, every value has a dot, and the last value of a single line is written beside it.
    With `live`, legends react to clicks and points to the mouse. `legend` is the width, in pixels,
    that a legend must fit into.
    """
    points = [_points(trace, y.log) for trace in traces]
    known = [value for one in points for _, *ys in one for value in ys if value is not None]
    if not known:
        return None
    if y.log:
        low, high = with_room([max(value, y.low or 0.0) for value in known], log=True)
        y = replace(y, low=low, high=high) if y.high is None else y
        y = replace(y, ticks=log_ticks(y))
    rows = [_row(place, *one) for place, one in enumerate(zip(traces, points, strict=True))]
    legends = _legends(traces)
    toggles = [one for name, looks in legends.items() for one in toggle(name, looks)] * live

    def layer(name: str, rows: Sequence[dict[str, Any]], *lists: str) -> alt.Chart:
        chart: alt.Chart = alt.Chart(inline(rows), name=name).transform_flatten([*lists])
        for one in toggles:
            chart = chart.transform_filter(one)
        return chart.encode(x_channel(x, sort=None), y_channel(y), detail="trace:N")

    layers = [*under]
    if bands := [row for row in rows if "y2" in row]:
        # A scale for the color would add a second legend.
        band = layer("bands", bands, "x", "y", "y2").mark_area(opacity=0.17)
        layers.append(band.encode(y2="y2:Q", fill=alt.Fill("hue:N", scale=None)))
    lines = layer("lines", [row for row in rows if "y2" not in row], "x", "y")
    styles: dict[str, Any] = {}
    for name, looks in legends.items():
        styles |= encodings(name, looks, legend)
    layers.append(lines.mark_line().encode(**styles).add_params(*toggles))
    if ends:
        dots = lines.properties(name="dots").mark_circle(size=34, opacity=1)
        layers.append(dots.encode(color=styles["color"]))
    drawn = [one for trace, one in zip(traces, points, strict=True) if trace.uppers is None]
    if ends and len(drawn) == 1:
        layers.append(_last_value(x, y, drawn[0]).encode(color=styles["color"]))
    tooltips = [alt.Tooltip("x:Q", title=x.label, format=",.5~g")]
    tooltips += [alt.Tooltip(f"{name}:N") for name, looks in legends.items() if len(looks) > 1]
    tooltips += [alt.Tooltip("y:Q", title=y.label or "value", format=",.4~g")]
    hover = layer("points", rows, "x", "y").mark_circle(size=90)
    hover = hover.encode(opacity=alt.OpacityValue(0), tooltip=tooltips)
    return Picture(layers, width, height, [hover] if live else [])


def refresh_lines(xs: Sequence[float]) -> alt.Chart:
    """Return dashed vertical lines at `xs`."""
    chart = alt.Chart(inline({"x": x} for x in xs), name="refreshes")
    mark: alt.Chart = chart.mark_rule(color=color("axis"), strokeDash=[2, 3])
    return mark.encode(x="x:Q")


def refresh_ticks(xs: Sequence[float], row: int, hue: str) -> alt.Chart:
    """Return a row of ticks above the chart at `xs`. If there are very many, some are left out."""
    rows = ({"x": x} for x in xs[:: math.ceil(len(xs) / _COLUMNS)])
    chart = alt.Chart(inline(rows), name=f"refreshes_{row}")
    mark: alt.Chart = chart.mark_rule(color=color(hue))
    top = -TICK * (row + 1)
    return mark.encode(x="x:Q", y=alt.YValue(top), y2=alt.Y2Value(top + TICK - 2))


def words(label: str) -> str:
    """Return a label that comes from a run's files, shortened and with every character visible."""
    text, note = cut(visible(label), _LONGEST_LABEL)
    return f"{text}\u2026" if note else text


def color(name: str) -> str:
    """Return the color `name` of colors.css."""
    return f"var(--{name})"


def inline(rows: Iterable[dict[str, Any]]) -> alt.InlineData:
    """Return `rows` as data inside a chart."""
    return alt.InlineData(values=list(rows))


def toggle(name: str, looks: Looks) -> list[alt.Parameter]:
    """Return the parameter that holds which labels of a legend are on; a click toggles one.

    Return [] for a legend with a single label.
    """
    if len(looks) < 2:
        return []
    select = alt.selection_point(
        name=f"shown_{name}",
        fields=[name],
        bind="legend",
        value=[{name: label} for label in looks],
        toggle="true",
        clear=False,
        empty=False,
    )
    return [select]


def encodings(name: str, looks: Looks, width: int = _PHONE) -> dict[str, Any]:
    """Return the channels that show the field `name`.

    If the field has several labels, they share a legend of at most `width` pixels.
    """
    first = next(iter(looks.values()))
    if len(looks) < 2:
        return {channel: _channel(f"{channel}Value")(value) for channel, value in first.items()}
    room = max(map(len, looks)) * _CHARACTER + 34
    columns = max(1, min(len(looks), int(width / room)))
    legend = alt.Legend(
        title=None,
        columns=columns,
        labelLimit=round(width / columns) - 24,
        symbolType="square" if name == "kind" else "stroke",
        symbolSize=100 if name == "kind" else 300,
        symbolStrokeColor=alt.Undefined if "color" in first else color("muted"),
    )
    return {
        channel: _channel(channel)(
            f"{name}:O",
            scale=alt.Scale(
                type="ordinal", domain=list(looks), range=[look[channel] for look in looks.values()]
            ),
            legend=legend,
        )
        for channel in first
    }


def _channel(name: str) -> Any:
    """Return Altair's class of a channel: Color for "color", ColorValue for "colorValue"."""
    return getattr(alt, name[0].upper() + name[1:])


_Points = list[tuple[float, float | None, float | None]]  # x, y, and the upper y of a band


def _points(trace: Trace, log: bool) -> _Points:
    """Return the trace's points, with None for values that are not finite or not on the axis."""

    def known(y: float | None) -> float | None:
        if y is None or not (y == 0 or LEAST < abs(y) < 1 / LEAST):
            return None
        return y if y > 0 or not log else None

    uppers = trace.ys if trace.uppers is None else trace.uppers
    every = zip(trace.xs, trace.ys, uppers, strict=True)
    return [(x, known(y), known(upper)) for x, y, upper in every]


def _last_value(x: Axis, y: Axis, points: _Points) -> alt.Chart:
    """Return the last known value as text beside its point."""
    last = [{"x": at, "y": value} for at, value, _ in points if value is not None][-1]
    text: alt.Chart = alt.Chart(inline([last]), name="ends").mark_text(
        align="left", dx=7, fontWeight=600
    )
    return text.encode(x_channel(x), y_channel(y), text=alt.Text("y:Q", format=".3f"))


def _row(place: int, trace: Trace, points: _Points) -> dict[str, Any]:
    """Return the trace as one row of data, with lists that Vega turns into points."""
    row: dict[str, Any] = {"run": trace.run, "series": trace.series, "trace": place}
    lower: list[Point] = [(x, y) for x, y, _ in points]
    if trace.uppers is None:
        kept = thinned(lower, _COLUMNS)
        return {**row, "x": [_short(x) for x, _ in kept], "y": [_short(y) for _, y in kept]}
    steps = envelope(lower, [(x, upper) for x, _, upper in points], _COLUMNS)
    ends = [pair or (None, None) for _, pair in steps]
    lists = {
        "x": [_short(x) for x, _ in steps],
        "y": [_short(low) for low, _ in ends],
        "y2": [_short(high) for _, high in ends],
    }
    return {**row, **lists, "hue": color(trace.color)}


def _legends(traces: Sequence[Trace]) -> dict[str, Looks]:
    """Return the looks of the runs, of the series, or of both. Only one of them has colors."""
    runs = {trace.run: {"color": color(trace.color)} for trace in traces[::-1]}  # the first on top
    styles = {trace.series: _style(trace.style) for trace in traces}
    if len(runs) == 1:
        return {"series": {t.series: {"color": color(t.color), **styles[t.series]} for t in traces}}
    if len(styles) > 1:
        return {"run": runs, "series": styles}
    return {"run": {t.run: {**runs[t.run], **_style(t.style)} for t in traces[::-1]}}


def _style(style: str) -> dict[str, Any]:
    look = dict(_PLAIN)
    for word in style.split():
        look |= _STYLES[word]
    return look


def _short(value: float | None) -> float | None:
    """Return `value` to five digits, more than a screen can show; whole numbers exactly."""
    if value is None:
        return None
    is_whole = abs(value) < 1e15 and value == int(value)
    return int(value) if is_whole else float(f"{value:.5g}")
