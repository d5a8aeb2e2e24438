"""Axes as Altair's channels: bounds, ticks and units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

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
