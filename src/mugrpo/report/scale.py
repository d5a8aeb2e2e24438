"""Axes: from numbers to pixels, where ticks stand and how they read; series thinned to pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float | None]  # None is a gap

MISSING = "\u2013"  # an en dash, where nothing was measured
MINUS = "\u2212"
TIMES = "\u00d7"

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Scale:
    """Numbers from `low` to `high`, drawn from pixel `start` to pixel `end`; others at the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (
            self._along(v) for v in (self.low, self.high, min(self.high, max(self.low, value)))
        )
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        if self.log:
            return log_ticks(self.low, self.high, count)
        return linear_ticks(self.low, self.high, count)

    def _along(self, value: float) -> float:
        return math.log10(value) if self.log else value


def domain(
    values: Sequence[float], *, log: bool, low: float | None = None, high: float | None = None
) -> tuple[float, float]:
    """What an axis spans: all `values` with a little room, or the bounds that are given."""
    least, most = min(values, default=0.1 if log else 0.0), max(values, default=1.0)
    if log:
        least, most = math.log10(least), math.log10(most)
    room = (most - least) * 0.06 or abs(most) * 0.1 or (0.1 if log else 1.0)
    least, most = least - room, most + room
    if log:
        least, most = 10 ** max(least, -300), 10 ** min(most, 300)
    return (least if low is None else low), (most if high is None else high)


def linear_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from `low` to `high`."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Powers of ten; with 2 and 5 between them, or plain round numbers, where those are few."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    decades = last - first + 1
    if decades > count:
        every = math.ceil(decades / count)
        return [10.0**k for k in range(first, last + 1) if k % every == 0]
    finer = [m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5)]
    finer = [tick for tick in finer if low * 0.999 <= tick <= high * 1.001]
    if len(finer) <= count + 1 and len(finer) >= 3:
        return finer
    if decades >= 3:
        return [10.0**k for k in range(first, last + 1)]
    return finer if len(finer) >= 3 else [t for t in linear_ticks(low, high, count) if t > 0]


def multiplier(low: float, high: float) -> int:
    """The power of ten that is taken out of an axis's labels: 0 where they read well as they are.

    Only for linear axes: 2e-4 reads 2, and the axis says that it is in units of 10 to the -4.
    """
    largest = max(abs(low), abs(high))
    if largest == 0 or 1e-2 <= largest < 1e5:
        return 0
    return math.floor(math.log10(largest) + 1e-9)


def tick_labels(ticks: Sequence[float], *, log: bool = False, power: int = 0) -> list[str]:
    """How `ticks` read; on a linear axis all with the same number of decimals."""
    if log:
        return [plain(tick) for tick in ticks]
    shown = [tick / 10.0**power for tick in ticks]
    steps = [b - a for a, b in pairwise(shown)] or [max(map(abs, shown), default=1.0)]
    decimals = max(0, *(_decimals(step) for step in steps))
    return [f"{value:,.{decimals}f}".replace("-", MINUS) for value in shown]


def plain(value: float | None, digits: int = 3) -> str:
    """A number for a reader: `digits` significant digits, thousands separated."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if -3 <= exponent < 6:
        shown = f"{value:,.{max(0, digits - 1 - exponent)}f}"
        shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
    else:
        mantissa = f"{value / 10.0**exponent:.{digits - 1}f}".rstrip("0").rstrip(".")
        power = ten_to(exponent)
        shown = power if mantissa == "1" else f"{mantissa}{TIMES}{power}"
    return shown.replace("-", MINUS)


def ten_to(exponent: int) -> str:
    return "10" + str(exponent).translate(_SUPERSCRIPTS)


def duration(seconds: float | None) -> str:
    """85 ms, 3.2 s, 2:05, 1:02:05."""
    if seconds is None:
        return MISSING
    if seconds < 0.9995:
        return f"{plain(seconds * 1000, 2)} ms" if seconds else "0 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def thinned(points: Sequence[Point], columns: int) -> list[Point]:
    """At most two points a column: the least and the greatest, so that no extreme is lost.

    Columns are of equal width on the x axis, and points ascend in x. A column of gaps is a gap.
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
    """Two lines over the same xs in at most about `columns` steps: (x, (least, greatest)).

    None where nothing of the step is known.
    """
    every = max(1, math.ceil(len(lower) / columns))
    steps: list[tuple[float, tuple[float, float] | None]] = []
    for start in range(0, len(lower), every):
        pairs = zip(lower[start : start + every], upper[start : start + every], strict=True)
        both = [(a, b) for (_, a), (_, b) in pairs if a is not None and b is not None]
        ends = (min(a for a, _ in both), max(b for _, b in both)) if both else None
        steps.append((lower[start][0], ends))
    return steps


def _decimals(step: float) -> int:
    """Decimals that tell multiples of `step` apart."""
    return next((d for d in range(9) if abs(step * 10**d - round(step * 10**d)) < 1e-6 * 10**d), 9)
