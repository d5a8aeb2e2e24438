"""Horizontal stacked bars and histograms: timelines, counts and lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from mugrpo.report.axes import Axis, x_channel, y_channel
from mugrpo.report.charts import Picture, color, encodings, inline, toggle

_ROW = 23  # pixels
_ROOM = 1.14  # the chart's width over the longest row's, to leave room for a row's total

_LIGHT = {"generate", "score", "evaluate", "wrong", "no-answer", "skipped"}  # they get dark text


@dataclass(frozen=True)
class Part:
    """A stretch of a row."""

    value: float  # its length
    kind: str
    title: str  # shown under the mouse
    text: str = ""  # written in it, if it fits


@dataclass(frozen=True)
class Row:
    """A horizontal bar with a label before it and a text after it."""

    label: str
    parts: Sequence[Part]
    end: str = ""


def stacked_rows(rows: Sequence[Row], hues: Mapping[str, str], width: int = 480) -> Picture:
    """Return bars, all to one scale. `hues` holds the color of each kind, in the legend's order."""
    longest = max((sum(part.value for part in row.parts) for row in rows), default=0.0) or 1.0
    parts, ends = [], []
    for row in rows:
        at = 0.0
        for part in row.parts:
            fits = 100 * part.value / longest > 1.5 + 2.2 * len(part.text)
            light = hues[part.kind] in _LIGHT
            parts.append(
                {
                    "row": row.label,
                    "x": at,
                    "x2": at + part.value,
                    "middle": at + part.value / 2,
                    "kind": part.kind,
                    "title": f"{row.label}, {part.title}",
                    "text": part.text if fits else "",
                    "ink": color("on-light" if light else "on-dark"),
                }
            )
            at += part.value
        ends.append({"row": row.label, "x": at, "text": row.end})
    order = [row.label for row in rows]
    axis = alt.Axis(title=None, domain=False, ticks=False, grid=False, labelLimit=160)
    y = alt.Y("row:N", sort=None, axis=axis, scale=alt.Scale(domain=order))
    span = alt.Scale(domain=[0, longest * _ROOM], nice=False)
    x, middle = (alt.X(f"{name}:Q", axis=None, scale=span) for name in ("x", "middle"))
    base, toggles, looks = _switched(parts, hues, "parts")
    bars = base.mark_bar(height=17, stroke=color("page"), strokeWidth=0.5)
    texts = base.properties(name="texts").transform_filter("datum.text").mark_text(fontWeight=500)
    end = alt.Chart(inline(ends), name="ends").mark_text(align="left", dx=6, color=color("muted"))
    layers = [
        bars.encode(x, y, x2="x2:Q", tooltip="title:N", **looks).add_params(*toggles),
        texts.encode(middle, y, text="text:N", color=alt.Color("ink:N", scale=None)),
        end.encode(x, y, text="text:N"),
    ]
    return Picture(layers, width, _ROW * len(rows))


def bar(left: float, right: float, count: float, kind: str, title: str) -> dict[str, Any]:
    """Return a vertical bar for `histogram`. Bars at the same place are stacked."""
    return {"x": left, "x2": right, "y": count, "kind": kind, "title": title}


def histogram(
    x: Axis, y: Axis, bars: Sequence[dict[str, Any]], hues: Mapping[str, str]
) -> alt.Chart:
    """Return stacked vertical bars. `hues` holds the color of each kind, in the legend's order."""
    order = list(hues)
    rows = [{**one, "order": order.index(one["kind"])} for one in bars]
    base, toggles, looks = _switched(rows, hues, "bars")
    x_bar, y_bar = x_channel(x, bin="binned"), y_channel(y, stack="zero")
    chart = base.mark_bar().encode(x_bar, y_bar, x2="x2:Q", order="order:Q", tooltip="title:N")
    colored: alt.Chart = chart.encode(**looks)
    return colored.add_params(*toggles)


def _switched(
    rows: Sequence[dict[str, Any]], hues: Mapping[str, str], name: str
) -> tuple[alt.Chart, list[alt.Parameter], dict[str, Any]]:
    """Return a chart of the kinds that are on, the parameters that toggle them, and their looks."""
    kinds = {kind: {"color": color(hue)} for kind, hue in hues.items()}
    chart, toggles = alt.Chart(inline(rows), name=name), toggle("kind", kinds)
    for one in toggles:
        chart = chart.transform_filter(one)
    return chart, toggles, encodings("kind", kinds)


def grouped(count: int, rows: int) -> list[range]:
    """Return 0 to count - 1 in at most `rows` ranges of equal length (the last may be shorter)."""
    size = math.ceil(count / rows) or 1
    return [range(start, min(start + size, count)) for start in range(0, count, size)]
