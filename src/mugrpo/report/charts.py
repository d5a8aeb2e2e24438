"""Static SVG charts: lines, bands, scatter, bars, log axes, vertical markers. No scripts, no state.

    chart = Chart(x=Axis("updates"), y=Axis("ratio", log=True))
    chart.markers([64, 128], css="refresh")
    chart.band(xs, lows, highs, css="run-0")
    chart.line(xs, middles, css="run-0", label="median")
    html = chart.svg("importance ratios")

Marks are gathered first and drawn in layers at the end, when all of them have decided what the axes
span. Colors, widths and dashes are classes of charts.css: `run-0` to `run-7` are hues that readers
with any color vision can tell apart, in light and dark; `dashed`, `dotted`, `thin` and `faint` say
the rest. None in a series is a gap; so is a value that a log axis has no place for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from mugrpo.report.markup import Markup, cut, join, number, tag
from mugrpo.report.scale import (
    TIMES,
    Point,
    Scale,
    domain,
    envelope,
    multiplier,
    ten_to,
    thinned,
    tick_labels,
)

Values = Sequence[float | None]

_CHARACTER = 6.4  # pixels of a label's character, on the generous side
_LONGEST_LABEL = 16
_LINE = 13.0  # pixels between two labels one above the other
_RUG = 5.0  # height of a row of ticks
_LEAST = 1e-300  # what is nearer to 0, or to infinity, has no place on an axis


@dataclass(frozen=True)
class Axis:
    """What an axis shows, with its unit; bounds and ticks that are None follow from the data."""

    label: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] | None = None


@dataclass
class Chart:
    """A plot of `width` x `height` pixels; it scales with the page."""

    x: Axis
    y: Axis
    width: int = 400
    height: int = 220
    _layers: dict[str, list[_Mark]] = field(default_factory=dict)
    _labels: list[tuple[Point, str, str]] = field(default_factory=list)
    _markers: list[tuple[list[float], str, bool]] = field(default_factory=list)

    def line(
        self,
        xs: Sequence[float],
        ys: Values,
        *,
        css: str,
        label: str | None = None,
        title: str | None = None,
    ) -> None:
        """A line through the points, in the order of ascending xs; `label` stands at its end."""
        points = self._known(xs, ys)
        self._add("lines", _Mark(points, f"line {css}", title))
        ends = [point for point in points if point[1] is not None]
        if label and ends:
            kept, note = cut(label, _LONGEST_LABEL)
            self._labels.append((ends[-1], f"{kept}\u2026" if note else kept, css))

    def band(self, xs: Sequence[float], lows: Values, highs: Values, *, css: str) -> None:
        """The area between two lines: a confidence interval, a range of quantiles."""
        lower, upper = self._known(xs, lows), self._known(xs, highs)
        self._add("bands", _Mark(lower, f"band {css}", None, upper))

    def scatter(
        self, xs: Sequence[float], ys: Values, *, css: str, titles: Sequence[str] | None = None
    ) -> None:
        """A dot a point; `titles` are shown where the mouse rests on one."""
        for index, point in enumerate(self._known(xs, ys)):
            self._add("dots", _Mark([point], f"dot {css}", titles[index] if titles else None))

    def bars(
        self,
        edges: Sequence[tuple[float, float]],
        spans: Sequence[tuple[float, float]],
        *,
        css: str,
        titles: Sequence[str] | None = None,
    ) -> None:
        """Upright bars: each from left to right `edges`, and from bottom to top `spans`."""
        for index, ((left, right), (bottom, top)) in enumerate(zip(edges, spans, strict=True)):
            title = titles[index] if titles else None
            self._add("bars", _Mark([(left, bottom), (right, top)], f"bar {css}", title))

    def markers(self, xs: Iterable[float], *, css: str, rug: bool = False) -> None:
        """Upright lines at `xs`; as a rug, a row of short ticks at the top, one row a call."""
        self._markers.append((list(xs), css, rug))

    @property
    def empty(self) -> bool:
        return not any(y is not None for mark in self._marks() for _, y in mark.all_points())

    def svg(self, name: str, at: tuple[float, float] | None = None) -> Markup:
        """The chart; `name` is what a screen reader calls it.

        `at` is where its upper left corner stands in a picture that it is a part of.
        """
        points = [point for mark in self._marks() for point in mark.all_points()]
        y = self._y_scale([y for _, y in points if y is not None])
        power = 0 if y.log else multiplier(y.low, y.high)
        ticks = self.y.ticks or y.ticks(max(2, round((y.start - y.end) / 34)))
        labels = tick_labels(ticks, log=y.log, power=power)
        x = self._x_scale([x for x, y in points if y is not None], max(map(len, labels), default=0))
        layers = [
            self._upright(x, y, dict(zip(ticks, labels, strict=True)), power),
            self._level(x, y),
            self._marker_layer(x, y),
            *(mark.draw(x, y) for name in _ORDER for mark in self._layers.get(name, [])),
            self._label_layer(x, y),
        ]
        size = (self.width, self.height)
        place = dict(zip(("x", "y", "width", "height"), (*at, *size), strict=True)) if at else {}
        box = f"0 0 {self.width} {self.height}"
        return tag("svg", *layers, viewBox=box, role="img", aria_label=name, **place)

    def _y_scale(self, values: Sequence[float]) -> Scale:
        low, high = domain(values, log=self.y.log, low=self.y.low, high=self.y.high)
        top = 20 + sum(rug for _, _, rug in self._markers) * (_RUG + 1)
        return Scale(low, high if high > low else low + 1, self.height - 38, top, self.y.log)

    def _x_scale(self, values: Sequence[float], characters: int) -> Scale:
        """With room for `characters` to its left, and for the longest label to its right."""
        low = min(values, default=0.0) if self.x.low is None else self.x.low
        high = max(values, default=1.0) if self.x.high is None else self.x.high
        left = max(46, characters * _CHARACTER + 8)
        right = max((len(label) for _, label, _ in self._labels), default=0) * _CHARACTER + 20
        wide = max(_LEAST, abs(low) * 1e-9)  # 1 more than 1e30 is 1e30
        end = high if high - low > wide else low + max(1.0, wide)
        return Scale(low, end, left, self.width - right, self.x.log)

    def _add(self, layer: str, mark: _Mark) -> None:
        self._layers.setdefault(layer, []).append(mark)

    def _marks(self) -> list[_Mark]:
        return [mark for marks in self._layers.values() for mark in marks]

    def _known(self, xs: Sequence[float], ys: Values) -> list[Point]:
        """Points, with None for what is not finite or, on a log axis, not positive."""

        def fits(y: float | None) -> bool:
            if y is None or not (y == 0 or _LEAST < abs(y) < 1 / _LEAST):
                return False
            return y > 0 or not self.y.log

        return [(x, y if fits(y) else None) for x, y in zip(xs, ys, strict=True)]

    def _upright(self, x: Scale, y: Scale, ticks: dict[float, str], power: int) -> Markup:
        """The y axis: grid lines with their labels, and the unit above them."""
        unit = f"{self.y.label} {TIMES}{ten_to(power)}".strip() if power else self.y.label
        parts = [_text(2, 10, unit, "unit")]
        for tick, label in ticks.items():
            parts.append(_segment(x.start, y(tick), x.end, y(tick), "grid"))
            parts.append(_text(x.start - 6, y(tick) + 4, label, "tick end"))
        return join(parts)

    def _level(self, x: Scale, y: Scale) -> Markup:
        """The x axis, its ticks and its unit."""
        ticks = self.x.ticks or x.ticks(max(2, round((x.end - x.start) / 64)))
        parts = [_segment(x.start, y.start, x.end, y.start, "axis")]
        for tick, label in zip(ticks, tick_labels(ticks, log=x.log), strict=True):
            parts.append(_segment(x(tick), y.start, x(tick), y.start + 4, "axis"))
            parts.append(_text(x(tick), y.start + 17, label, "tick middle"))
        parts.append(_text(x.end, self.height - 5, self.x.label, "unit end"))
        return join(parts)

    def _marker_layer(self, x: Scale, y: Scale) -> Markup:
        parts, row = [], 0
        for xs, css, rug in self._markers:
            top = 18 + row * (_RUG + 1)
            length = _RUG if rug else y.start - y.end
            places = sorted({number(x(at)) for at in xs if x.low <= at <= x.high}, key=float)
            path = "".join(
                f"M{at} {number(top if rug else y.end)}v{number(length)}" for at in places
            )
            parts.append(tag("path", d=path, class_=f"marker {css}") if path else None)
            row += rug
        return join(parts)

    def _label_layer(self, x: Scale, y: Scale) -> Markup:
        """The lines' labels at their ends, moved apart where they would touch."""
        columns: dict[int, list[tuple[float, float, str, str]]] = {}
        for (at, height), label, css in self._labels:
            place = (y(height or 0.0), x(at), label, css)
            columns.setdefault(round(x(at) / (6 * _CHARACTER)), []).append(place)
        parts = []
        for column in map(sorted, columns.values()):
            heights = spread([height for height, *_ in column], _LINE, y.end, y.start)
            for height, (_, left, label, css) in zip(heights, column, strict=True):
                parts.append(_text(left + 7, height + 4, label, f"label {css}"))
        return join(parts)


_ORDER = ("bands", "bars", "lines", "dots")


@dataclass(frozen=True)
class _Mark:
    """Points that are drawn as one shape, whose kind is the first word of `css`."""

    points: list[Point]
    css: str
    title: str | None = None
    upper: list[Point] | None = None

    def all_points(self) -> list[Point]:
        return [*self.points, *(self.upper or [])]

    def draw(self, x: Scale, y: Scale) -> Markup | None:
        title = tag("title", self.title) if self.title else None
        if self.css.startswith("dot"):
            (at, height) = self.points[0]
            if height is None:
                return None
            return tag("circle", title, cx=x(at), cy=y(height), r=3.2, class_=self.css)
        if self.css.startswith("bar"):
            (left, bottom), (right, top) = self.points
            low = y(bottom or 0.0)
            high = min(y(top or 0.0), low - 1)  # what is there is seen
            wide = max(0.5, x(right) - x(left) - 1)
            return tag(
                "rect", title, x=x(left), y=high, width=wide, height=low - high, class_=self.css
            )
        columns = int(x.end - x.start) // 2
        if self.upper is not None:
            area = _area(self.points, self.upper, columns, x, y)
            return tag("path", title, d=area, class_=self.css) if area else None
        lines, lone = _paths(thinned(self.points, columns), x, y)
        return join(
            tag("path", title, d=path, class_=css)
            for path, css in ((lines, self.css), (lone, f"{self.css} lone"))
            if path
        )


def spread(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Heights near the ascending `wanted`, `apart` from each other, from `low` to `high`."""
    placed: list[float] = []
    for at in wanted:
        placed.append(max(at, placed[-1] + apart if placed else low))
    ceiling = high
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - apart
    return placed


def _paths(points: Sequence[Point], x: Scale, y: Scale) -> tuple[str, str]:
    """Lines through the points, broken at gaps; and the points that stand alone, as round dots."""
    lines, lone = "", ""
    for known, run in groupby(points, key=lambda point: point[1] is not None):
        if known:
            places = [f"{number(x(at))} {number(y(height or 0.0))}" for at, height in run]
            if len(places) > 1:
                lines += "M" + "L".join(places)
            else:
                lone += f"M{places[0]}h0"
    return lines, lone


def _area(lower: Sequence[Point], upper: Sequence[Point], columns: int, x: Scale, y: Scale) -> str:
    """The closed shape between two lines, one for each stretch in which both are known."""
    parts = []
    for known, run in groupby(envelope(lower, upper, columns), key=lambda row: row[1] is not None):
        if known:
            row = [(x(at), y(ends[0]), y(ends[1])) for at, ends in run if ends]
            there = [f"{number(at)} {number(low)}" for at, low, _ in row]
            back = [f"{number(at)} {number(high)}" for at, _, high in reversed(row)]
            parts.append("M" + "L".join([*there, *back]) + "Z")
    return "".join(parts)


def _segment(x1: float, y1: float, x2: float, y2: float, css: str) -> Markup:
    return tag("path", d=f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}", class_=css)


def _text(x: float, y: float, label: str, css: str) -> Markup:
    return tag("text", label, x=x, y=y, class_=css)
