"""Charts in Altair's grammar, as SVG and PNG without a browser, and as live charts of a page.

Colors are the variables of colors.css, so that one chart suits a light page, a dark page and paper.
None in a series is a gap, and so is a value that a logarithmic axis cannot show. A page holds each
chart twice: a static SVG, visible at once, without a script and on paper, and the same
specification for draw.js, which replaces the SVG by the live chart when a reader reaches it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

import altair as alt
import vl_convert
from markupsafe import Markup

from mugrpo.report.readable import cut, visible

TICK = 6  # pixels from one row of ticks above a chart to the next
LEAST = 1e-300  # values nearer to 0, or beyond 1 / LEAST, are not drawn


@dataclass(frozen=True)
class Axis:
    """An axis: its label with the unit, and its scale. Bounds and ticks of None follow the data."""

    label: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] | None = None
    above: int = 0  # rows of ticks between the chart and its unit


def x_channel(axis: Axis, name: str = "x", *, grid: bool = False, **more: Any) -> alt.X:
    """Return `axis` as the x channel of the field `name`."""
    options = alt.Axis(title=axis.label, grid=grid, **_ticks(axis))
    return alt.X(f"{name}:Q", axis=options, scale=_scale(axis, nice=False), **more)


def y_channel(axis: Axis, name: str = "y", **more: Any) -> alt.Y:
    """Return `axis` as the y channel of the field `name`."""
    options = alt.Axis(title=axis.label, titleY=-9 - TICK * axis.above, **_ticks(axis))
    return alt.Y(f"{name}:Q", axis=options, scale=_scale(axis, nice=axis.high is None), **more)


def with_room(values: Sequence[float], *, log: bool = False) -> tuple[float, float]:
    """Return the bounds of an axis with all `values` (positive if `log`) and a little room."""
    least, most = min(values, default=0.1), max(values, default=1.0)
    if log:
        room = 10 ** max(0.06 * (math.log10(most) - math.log10(least)), 0.05)
        return max(least / room, LEAST), min(most * room, 1 / LEAST)
    room = (most - least) * 0.06 or abs(most) * 0.1 or 1.0
    return least - room, most + room


def log_ticks(axis: Axis) -> list[float]:
    """Return the powers of ten within the axis's bounds, and 2 and 5 times them if they are few."""
    assert axis.low and axis.high
    first, last = math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high))
    every = max(1, math.ceil((last - first) / 7))
    steps = (1, 2, 5) if axis.high / axis.low < 300 else (1,)
    ticks = [m * 10.0**k for k in range(first, last + 1, every) for m in steps]
    return [tick for tick in ticks if axis.low <= tick <= axis.high]


def _ticks(axis: Axis) -> dict[str, Any]:
    ticks: dict[str, Any] = {"values": list(axis.ticks)} if axis.ticks else {}
    if axis.log or any(tick % 1 for tick in axis.ticks or ()):
        ticks["labelExpr"] = "format(datum.value, '~g')"  # by default, Vega omits and rounds labels
    return ticks


def _scale(axis: Axis, *, nice: bool) -> alt.Scale:
    options: dict[str, Any] = {"type": "log"} if axis.log else {"zero": False}
    if axis.low is not None:
        options["domainMin"] = axis.low
    if axis.high is not None:
        options |= {"domainMax": axis.high, "clamp": True}
    return alt.Scale(nice=nice, **options)


Values = Sequence[float | None]
Point = tuple[float, float | None]  # None is a gap
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

    With `ends`, every value has a dot. With `live`, legends react to clicks and points to the
    mouse. `legend` is the width, in pixels, that a legend must fit into.
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
        symbolType="stroke",
        symbolSize=300,
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


def thinned(points: Sequence[Point], columns: int) -> list[Point]:
    """Return at most two points per column, the least and the greatest, so no extreme is lost.

    Columns have equal width on the x axis, and points ascend in x. A column of gaps is a gap.
    """
    if len(points) <= 2 * columns:
        return list(points)
    left, width = points[0][0], (points[-1][0] - points[0][0]) / columns or 1.0
    buckets: dict[int, list[Point]] = {}
    for point in points:
        buckets.setdefault(min(columns - 1, int((point[0] - left) / width)), []).append(point)
    kept: list[Point] = []
    for bucket in buckets.values():
        known = [(y, x) for x, y in bucket if y is not None]
        if not known:
            kept.append((bucket[0][0], None))
            continue
        ends = {min(known), max(known)}
        kept += sorted((x, y) for y, x in ends)
    return kept


def envelope(
    lower: Sequence[Point], upper: Sequence[Point], columns: int
) -> list[tuple[float, tuple[float, float] | None]]:
    """Return at most `columns` steps of a band: (x, (least of `lower`, greatest of `upper`)).

    The lines must have the same xs. The pair is None if a step has no x with both values.
    """
    every = max(1, math.ceil(len(lower) / columns))
    steps: list[tuple[float, tuple[float, float] | None]] = []
    for start in range(0, len(lower), every):
        pairs = zip(lower[start : start + every], upper[start : start + every], strict=True)
        both = [(a, b) for (_, a), (_, b) in pairs if a is not None and b is not None]
        ends = (min(a for a, _ in both), max(b for _, b in both)) if both else None
        steps.append((lower[start][0], ends))
    return steps


# Liberation Sans has the metrics of Arial and Helvetica: text is as wide here as in a browser.
_FONT = "Helvetica, Arial, Liberation Sans, sans-serif"
_TEXT = {"labelFontSize": 11, "labelColor": color("muted"), "titleColor": color("muted")}

THEME: dict[str, Any] = {
    "aria": False,  # the figure has a name; labels for all points would bury it
    "background": "transparent",
    "font": _FONT,
    "padding": 2,
    "view": {"stroke": None},
    "title": {"anchor": "start", "color": color("ink"), "fontSize": 13, "offset": 12},
    "line": {"invalid": "break-paths-show-domains", "strokeCap": "round", "strokeJoin": "round"},
    "area": {"invalid": "break-paths-show-domains", "line": False},
    "text": {"fontSize": 11, "color": color("ink")},
    "axis": {
        **_TEXT,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "gridColor": color("grid"),
        "domainColor": color("axis"),
        "tickColor": color("axis"),
        "tickSize": 4,
        "labelPadding": 5,
        "labelFlush": False,
    },
    "axisX": {"titleAnchor": "end", "titlePadding": 4, "tickCount": 6},
    "axisY": {
        "domain": False,
        "ticks": False,
        "tickCount": 5,
        "titleAngle": 0,
        "titleAlign": "left",
        "titleAnchor": "end",
        "titleBaseline": "bottom",
        "titleX": -34,
        "titleY": -9,
    },
    "legend": {
        **_TEXT,
        "labelColor": color("ink"),
        "orient": "bottom",
        "layout": {"bottom": {"direction": "vertical", "anchor": "start", "margin": 4}},
        "symbolStrokeWidth": 2,
        "rowPadding": 3,
        "columnPadding": 14,
        "unselectedOpacity": 0.3,
        "offset": 8,
    },
}

_VARIABLE = re.compile(r"var\(--([\w-]+)\)")
_POINT = re.compile(r"(\.\d)\d+")  # of a coordinate: a tenth of a pixel is enough
_NOTHING = re.compile(
    r'<path class="(?:fore|back)ground"[^>]*/>| (?:class|pointer-events|aria-\w+|role)="[^"]*"'
)

Chart = alt.Chart | alt.LayerChart | alt.HConcatChart | alt.FacetChart


def page_parts(picture: Picture) -> tuple[Markup, Markup]:
    """Return the picture for a page: its static SVG, and the JSON that draw.js makes it live by."""
    live = alt.layer(*picture.layers, *picture.hover)
    spec = vega_lite(live.properties(width="container", height=picture.height))
    still = {**spec, "layer": spec["layer"][: len(picture.layers)], "width": picture.width}
    return Markup(_inline(svg(still))), Markup(_as_script(spec))


def vega_lite(chart: Chart) -> dict[str, Any]:
    """Return the chart's Vega-Lite with the theme, but without its schema, which is a URL."""
    spec: dict[str, Any] = {**chart.to_dict(validate=False), "config": THEME}
    del spec["$schema"]
    return spec


def svg(spec: dict[str, Any]) -> str:
    """Return Vega-Lite as compact SVG. Its colors are variables of a style sheet."""
    image = _NOTHING.sub("", vl_convert.vegalite_to_svg(spec))
    return re.sub(r' d="[^"]*"', lambda match: _POINT.sub(r"\1", match[0]), image)


def svg_file(chart: Chart) -> str:
    """Return the chart as an SVG file for light and dark pages."""
    head, rest = svg(vega_lite(chart)).split(">", 1)
    paper = f'<rect width="100%" height="100%" fill="{color("page")}"/>'
    return f"{head}><style>{sheet('colors.css')}</style>{paper}{rest}\n"


def png(chart: Chart, scale: float = 2.0) -> bytes:
    """Return the chart as PNG, in light colors."""
    light = dict(re.findall(r"--([\w-]+): ([^;]+);", sheet("colors.css").split("@media")[0]))
    text = json.dumps({**vega_lite(chart), "background": light["page"]})
    spec = _VARIABLE.sub(lambda match: light[match[1]], text)
    image: bytes = vl_convert.vegalite_to_png(spec, scale=scale)
    return image


@cache
def script() -> str:
    """Return the only script of a page: Vega with its license, and draw.js."""
    bundle: str = vl_convert.javascript_bundle(sheet("draw.js"))
    return f"/*!\n{sheet('VEGA_LICENSE')}*/\n{bundle}"


@cache
def sheet(file: str) -> str:
    """Return one of the text files beside this module."""
    return resources.files("mugrpo.report").joinpath(file).read_text(encoding="utf-8")


def _as_script(spec: dict[str, Any]) -> str:
    """Return JSON that cannot end the element around it, whatever strings `spec` has."""
    text = json.dumps(spec, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _inline(image: str) -> str:
    """Return an SVG for use inside a page: without namespaces, which are URLs."""
    head, rest = image.split(">", 1)
    size = re.findall(r'(?:width|height|viewBox)="[^"]*"', head)
    return f"<svg {' '.join(size)}>{rest}"
