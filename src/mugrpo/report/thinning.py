"""Long series reduced to the points that a chart has pixels for, without losing an extreme."""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = tuple[float, float | None]  # None is a gap


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
