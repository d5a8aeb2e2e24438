"""Charts in Altair's grammar, as SVG without a browser, and as live charts of a page.

Colors are the variables of colors.css, so that one chart suits a light page, a dark page and paper.
None in a line is a gap, and so is a value that a logarithmic axis cannot show. A page holds each
chart twice: a static SVG, visible at once, without a script and on paper, and the same
specification for draw.js, which replaces the SVG by the live chart when a reader reaches it.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

import altair as alt
import vl_convert
from markupsafe import Markup

from mugrpo.report.readable import cut, with_signs

Values = Sequence[float | None]
Chart = alt.Chart | alt.LayerChart | alt.HConcatChart | alt.FacetChart

_HUES = 8
_DASHES = ([1, 0], [6, 4], [1, 3.5], [9, 3, 2, 3], [2, 2])
_COLUMNS = 160  # a longer line has the least and the greatest value of each column
_FINITE = 1e300  # Vega's arithmetic overflows beyond, and below 1 / _FINITE
_LEAST_SPAN = 0.1  # of a linear axis, over its values
BAR = 52  # pixels from one bar to the next
TIMES = {  # what a picture of seconds tells apart -> phases
    "generate": ("generate",),
    "refresh": ("refresh",),
    "optimize": ("optimize",),
    "score, save": ("score", "checkpoint"),
    "evaluate": ("evaluate",),
}
_TICK = 6  # pixels from one row of ticks above a chart to the next


@dataclass(frozen=True)
class Axis:
    """An axis: its label with the unit, and its scale. Bounds of None follow the data."""

    label: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None
    rows: int = 0  # of ticks between the chart and its unit

    def channel(self, kind: type[Any], name: str, *, grid: bool = False, **more: Any) -> Any:
        """Return the axis as a channel, alt.X or alt.Y, of the field `name`."""
        scale: dict[str, Any] = {"type": "log"} if self.log else {"zero": False}
        if self.low is not None:
            scale |= {"domainMin": self.low, "clamp": True}
        if self.high is not None:
            scale |= {"domainMax": self.high, "clamp": True}
        options: dict[str, Any] = {"title": self.label, "grid": grid}
        options |= {"format": "~g"} if self.log else {}
        options |= {"format": ",.5~g"} if kind is alt.Y and not self.log else {}
        options |= {"titleY": -11 - _TICK * self.rows} if kind is alt.Y else {}
        nice = kind is alt.Y and self.high is None
        return kind(
            f"{name}:Q", axis=alt.Axis(**options), scale=alt.Scale(nice=nice, **scale), **more
        )


@dataclass(frozen=True)
class Line:
    """A line through (xs, ys), or the band between `ys` and `uppers`.

    Lines with the same label have the same color, the `hue`-th. Those of several kinds have a dash
    for each kind.
    """

    xs: Sequence[float]
    ys: Values
    label: str = ""
    hue: int = 0
    kind: str = ""
    uppers: Values | None = None
    faint: bool = False


@dataclass(frozen=True)
class Picture:
    """A chart: its layers from back to front; the last one only serves a mouse."""

    layers: Sequence[alt.Chart]
    width: int = 400
    height: int = 220


def line_chart(
    x: Axis,
    y: Axis,
    lines: Sequence[Line],
    *,
    under: Sequence[alt.Chart] = (),
    width: int = 400,
    height: int = 220,
    live: bool = True,
    legend: bool = True,
) -> Picture | None:
    """Return the lines as a picture, the last one on top, or None if they have no values.

    In a live chart, a click on a legend's entry hides or shows its lines.
    """
    rows = [_row(number, line, y.log) for number, line in enumerate(lines)]
    values = [v for row in rows for v in (*row["y"], *row.get("y2", ())) if v is not None]
    if not values:
        return None
    y = _not_enlarged(y, min(values), max(values))
    labels = list(dict.fromkeys(line.label for line in lines[::-1]))  # the first on top
    kinds = list(dict.fromkeys(line.kind for line in lines[::-1] if line.uppers is None))
    shown = alt.selection_point(
        name="shown",
        fields=["label"],
        bind="legend",
        value=[{"label": label} for label in labels],
        toggle="true",
        empty=False,
    )

    def layer(name: str, rows: Sequence[dict[str, Any]], *lists: str) -> alt.Chart:
        chart: alt.Chart = alt.Chart(alt.InlineData(values=rows), name=name).transform_flatten(
            [*lists]
        )
        xs = x.channel(alt.X, "x", sort=None)
        ys = y.channel(alt.Y, "y", grid=True)
        chart = chart.transform_filter(shown) if live else chart
        return chart.encode(xs, ys, detail="line:N")

    layers = [*under]
    if bands := [row for row in rows if "y2" in row]:
        # A scale for the color would add a second legend.
        band = layer("bands", bands, "x", "y", "y2").mark_area(opacity=0.17)
        layers.append(band.encode(y2="y2:Q", fill=alt.Fill("hue:N", scale=None)))
    plain = layer("lines", [row for row in rows if "y2" not in row], "x", "y")
    hues = {line.label: color(hue(line.hue)) for line in lines}
    styles: dict[str, Any] = {
        "color": _channel(alt.Color, "label", labels, [hues[label] for label in labels], legend),
        "opacity": alt.Opacity("opacity:Q", scale=None),
    }
    if len(kinds) > 1:
        styles["strokeDash"] = _channel(alt.StrokeDash, "kind", kinds, list(_DASHES))
    drawn = plain.mark_line().encode(**styles)
    layers.append(drawn.add_params(shown) if live else drawn)
    if alone := _alone(rows):  # a line does not show them
        layers.append(layer("dots", alone, "x", "y").mark_circle(size=18).encode(**styles))
    points = layer("points", rows, "x", "y").mark_circle(size=90)
    points = points.encode(opacity=alt.OpacityValue(0), tooltip=_tooltips(x, y))
    return Picture([*layers, points], width, height)


def _not_enlarged(y: Axis, least: float, greatest: float) -> Axis:
    """Return `y` with bounds a tenth of the values apart if they hardly differ, or not at all."""
    span = _LEAST_SPAN * abs(least + greatest) / 2
    if y.log or y.low is not None or y.high is not None or greatest - least >= span:
        return y
    middle = (least + greatest) / 2
    return replace(y, low=middle - span / 2, high=middle + span / 2)


@dataclass(frozen=True)
class Bar:
    """A bar of several parts: the text above it, the parts' sizes, and the text at its end."""

    head: str
    parts: dict[str, float]
    end: str = ""


def bar_layers(x: Axis, bars: Sequence[Bar], size: int = 13) -> list[alt.Chart]:
    """Return the layers of a picture of bars, one under another, to the same scale.

    Their parts have a color each, in the order of the first bar. The last layer serves a mouse.
    """
    names = [f"{number}" for number in range(len(bars))]  # heads may be alike
    parts, heads = list[dict[str, Any]](), list[dict[str, Any]]()
    for name, bar in zip(names, bars, strict=True):
        until = 0.0
        for part, length in bar.parts.items():
            row = {"bar": name, "part": part, "from": until, "to": until + length, "is": length}
            parts.append(row)
            until += length
        heads.append({"bar": name, "to": until, "head": bar.head, "end": bar.end})
    x = replace(x, low=0, high=1.14 * max(row["to"] for row in heads) or 1.0)
    y = alt.Y("bar:N", sort=None, axis=None, scale=alt.Scale(domain=names))
    each = list(bars[0].parts)
    legend = alt.Legend(title=None, columns=3, symbolType="square", symbolStrokeWidth=0)
    scale = alt.Scale(domain=each, range=[color(hue(i)) for i in range(len(each))])
    color_of = alt.Color("part:N", scale=scale, legend=legend)
    marks = alt.Chart(alt.InlineData(values=parts), name="parts").mark_bar(size=18)
    whole = marks.encode(x.channel(alt.X, "from"), y, color_of, x2="to:Q")
    texts = alt.Chart(alt.InlineData(values=heads), name="bars")
    above = texts.mark_text(align="left", baseline="middle", dy=-20, fontSize=size)
    after = texts.properties(name="ends").mark_text(
        align="left", baseline="middle", dx=6, fontSize=size
    )
    told = [alt.Tooltip("part:N"), alt.Tooltip("is:Q", title=x.label, format=",.4~g")]
    return [
        whole,
        above.encode(alt.Text("head:N"), y, x=alt.XValue(0)),
        after.encode(x.channel(alt.X, "to"), y, alt.Text("end:N")),
        whole.properties(name="points").encode(opacity=alt.OpacityValue(0), tooltip=told),
    ]


def refresh_ticks(xs: Sequence[float], row: int, index: int) -> alt.Chart:
    """Return a row of ticks above the chart at `xs`, in the `index`-th color."""
    rows = [{"x": x} for x in xs[:: math.ceil(len(xs) / _COLUMNS)]]
    chart = alt.Chart(alt.InlineData(values=rows), name=f"refreshes_{row}")
    mark: alt.Chart = chart.mark_rule(color=color(hue(index)))
    top = -_TICK * (row + 1) - 2  # labels beside the axis end there
    return mark.encode(x="x:Q", y=alt.YValue(top), y2=alt.Y2Value(top + _TICK - 2))


def words(label: str) -> str:
    """Return a label that comes from a run's files, shortened and with every character visible."""
    text, note = cut(with_signs(label), 40)
    return f"{text}\u2026" if note else text


def hue(index: int) -> str:
    """Return the name of the `index`-th color. After eight, they repeat."""
    return f"run-{index % _HUES}"


def color(name: str) -> str:
    """Return the color `name` of colors.css."""
    return f"var(--{name})"


def _channel(
    kind: type[Any], name: str, domain: list[str], values: list[Any], shown: bool = True
) -> Any:
    """Return a channel of the field `name`, with a legend if it has several values."""
    columns = 1 if max(map(len, domain)) > 16 else 4
    legend = alt.Legend(title=None, columns=columns, symbolType="stroke", labelLimit=330)
    scale = alt.Scale(type="ordinal", domain=domain, range=values)
    return kind(f"{name}:O", scale=scale, legend=legend if shown and len(domain) > 1 else None)


def _row(number: int, line: Line, log: bool) -> dict[str, Any]:
    """Return the line as one row of data, with lists that Vega turns into points."""

    def known(y: float | None) -> float | None:
        if y is None or not (y == 0 or 1 / _FINITE < abs(y) < _FINITE) or (log and y <= 0):
            return None
        return float(f"{y:.5g}")  # more than a screen can show

    row: dict[str, Any] = {"line": number, "label": line.label, "kind": line.kind}
    row |= {"hue": color(hue(line.hue)), "opacity": 0.35 if line.faint else 1}
    ys = list(map(known, line.ys))
    if line.uppers is None:
        kept = thinned(ys, _COLUMNS)
        return {**row, "x": [line.xs[i] for i in kept], "y": [ys[i] for i in kept]}
    highs = list(map(known, line.uppers))
    whole = [None not in edges for edges in zip(ys, highs, strict=True)]
    ys, highs = (
        [y if both else None for y, both in zip(of, whole, strict=True)] for of in (ys, highs)
    )
    lows, tops = thinned(ys, _COLUMNS, ends=(min,)), thinned(highs, _COLUMNS, ends=(max,))
    xs = [line.xs[i] for i in lows]
    return {**row, "x": xs, "y": [ys[i] for i in lows], "y2": [highs[i] for i in tops]}


def _tooltips(x: Axis, y: Axis) -> list[Any]:
    ends = alt.Tooltip("y:Q", title=y.label or "value", format=",.4~g")
    return [alt.Tooltip("x:Q", title=x.label, format=",.5~g"), "label:N", "kind:N", ends]


def _alone(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows' points without neighbours."""
    found = []
    for row in rows:
        ys = [None, *row["y"], None]
        kept = [i for i, y in enumerate(row["y"]) if y is not None and ys[i] is ys[i + 2] is None]
        found += [row | {key: [row[key][i] for i in kept] for key in ("x", "y")}] if kept else []
    return found


def thinned(ys: Values, columns: int, ends: Sequence[Any] = (min, max)) -> list[int]:
    """Return the indices of the least and the greatest value of each of `columns`, ascending.

    So no extreme is lost. A column of gaps is a gap.
    """
    every = max(1, math.ceil(len(ys) / columns))
    kept: list[int] = []
    for start in range(0, len(ys), every):
        column = range(start, min(start + every, len(ys)))
        filled = [i for i in column if ys[i] is not None] or [start]
        kept += sorted({end(filled, key=lambda i: ys[i] or 0.0) for end in ends})
    return kept


_POINT = re.compile(r"(\.\d)\d+")  # of a coordinate: a tenth of a pixel is enough
_NOTHING = re.compile(
    r'<path class="(?:fore|back)ground"[^>]*/>| (?:class|pointer-events|aria-\w+|role)="[^"]*"'
)


def page_parts(picture: Picture) -> tuple[Markup, Markup]:
    """Return the picture for a page: its static SVG, and the JSON that draw.js makes it live by."""
    live = alt.layer(*picture.layers)
    spec = vega_lite(live.properties(width="container", height=picture.height))
    still = {**spec, "layer": spec["layer"][:-1], "width": picture.width}
    head, rest = svg(still).split(">", 1)
    size = re.findall(r'(?:width|height|viewBox)="[^"]*"', head)  # without namespaces, in a page
    text = json.dumps(spec, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # no string of the JSON can end the element around it
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f"<svg {' '.join(size)}>{rest}"), Markup(text)


def vega_lite(chart: Chart) -> dict[str, Any]:
    """Return the chart's Vega-Lite with the theme, but without its schema, which is a URL.

    Text is as wide here as in a browser: Liberation Sans has the metrics of Arial and Helvetica.
    """
    spec: dict[str, Any] = {
        **chart.to_dict(validate=False),
        "config": json.loads(sheet("theme.json")),
    }
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


@cache
def script() -> str:
    """Return the only script of a page: Vega with its license, and draw.js."""
    bundle: str = vl_convert.javascript_bundle(sheet("draw.js"))
    return f"/*!\n{sheet('VEGA_LICENSE')}*/\n{bundle}"


@cache
def sheet(file: str) -> str:
    """Return one of the text files beside this module."""
    return resources.files("mugrpo.report").joinpath(file).read_text(encoding="utf-8")
