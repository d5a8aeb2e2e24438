"""Lying stacked bars that fill their column: timelines and counts, one row a stage.

Lengths are percentages, so that bars grow with the page while their text keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mugrpo.report.markup import Markup, join, tag


@dataclass(frozen=True)
class Part:
    """A stretch of a row: its length, its color, its name where the mouse rests, its text."""

    value: float
    css: str
    title: str
    text: str = ""


@dataclass(frozen=True)
class Row:
    label: str
    parts: Sequence[Part]
    end: str = ""


def stacked_rows(rows: Sequence[Row], *, full: float | None = None) -> Markup:
    """All rows to one scale, whose right edge is `full` (the longest row's length if None)."""
    totals = [sum(part.value for part in row.parts) for row in rows]
    whole = full or max(totals, default=0.0) or 1.0
    cells = [
        cell
        for row in rows
        for cell in (
            tag("span", row.label, class_="row-label"),
            _bar(row.parts, whole),
            tag("span", row.end, class_="row-end"),
        )
    ]
    return tag("div", *cells, class_="rows")


def grouped(count: int, rows: int) -> list[range]:
    """0..count-1 cut into at most `rows` stretches of equal length (the last may be shorter)."""
    size = math.ceil(count / rows) or 1
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def _bar(parts: Sequence[Part], whole: float) -> Markup:
    shapes, left = [], 0.0
    for part in parts:
        share = 100 * part.value / whole
        shapes.append(
            tag(
                "rect",
                tag("title", part.title),
                x=f"{left:.3f}%",
                y=0,
                width=f"{share:.3f}%",
                height=18,
                class_=f"bar {part.css}",
            )
        )
        if part.text and share > 1.5 + 2.2 * len(part.text):
            middle = f"{left + share / 2:.2f}%"
            shapes.append(tag("text", part.text, x=middle, y=13, class_=f"inside {part.css}"))
        left += share
    return tag("svg", join(shapes), width="100%", height=18, class_="row-bar", role="img")
