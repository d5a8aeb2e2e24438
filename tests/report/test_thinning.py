from __future__ import annotations

import math

from mugrpo.report.thinning import envelope, thinned


def test_thinning_keeps_every_extreme_and_at_most_two_points_a_column():
    points = [(float(x), math.sin(x)) for x in range(4096)]
    points[1234] = (1234.0, 50.0)
    points[3000] = (3000.0, -50.0)
    kept = thinned(points, 100)
    assert len(kept) <= 200 and set(kept) <= set(points)
    assert (1234.0, 50.0) in kept and (3000.0, -50.0) in kept
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)


def test_thinning_keeps_columns_of_gaps_and_short_series():
    few = [(0.0, 1.0), (1.0, None), (2.0, 3.0)]
    assert thinned(few, 10) == few
    gap = [(float(x), None if 400 <= x < 600 else 1.0) for x in range(1000)]
    assert [x for x, y in thinned(gap, 10) if y is None] == [400.0, 500.0]


def test_an_envelope_is_the_widest_of_each_step():
    lower = [(0.0, 2.0), (1.0, 1.0), (2.0, None), (3.0, None)]
    upper = [(0.0, 3.0), (1.0, 9.0), (2.0, 4.0), (3.0, None)]
    assert envelope(lower, upper, 2) == [(0.0, (1.0, 9.0)), (2.0, None)]
