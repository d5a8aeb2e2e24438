"""How hard a run's groups are, and the weight that the bound gives to their variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import altair as alt

from mugrpo.report.axes import Axis
from mugrpo.report.charts import Picture, Trace, color, inline, line_chart
from mugrpo.report.embed import chart_markup
from mugrpo.report.figures import figure, run_hue
from mugrpo.report.markup import Markup, tag
from mugrpo.report.read import Line, RunData, evenly, number
from mugrpo.report.readable import plain
from mugrpo.report.rows import bar, histogram

_PREFIX = "groups_right/"
_EPS = 1e-4  # the bound's epsilon, inside the root
_STAGES = 4  # most stages with a line of their own
_MOST_BINS = 32
_MOST_GROUPS = 1e15  # a larger number is not a count
_CURVE = 256  # steps of the weight's curve, closer together towards its ends
_WIDTH = 480  # pixels
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)

Shares = list[float]  # of a stage's groups, by bin


def variance_weight_figure(run: RunData) -> Markup | None:
    """Return a figure of groups by their share of right responses, and of the bound's (1-s)/s.

    Return None if the run has no counts of groups.
    """
    bins = _bins(run)
    counts = [_counts(line, bins) for line in run.refreshes]
    known = [(stage, _shares(groups)) for stage, groups in enumerate(counts) if any(groups)]
    if not known:
        return None
    overall = _shares([sum(column) for column in zip(*counts, strict=True)])
    words = (
        f"The weight diverges at 0 and 1 (only ε keeps it at {plain(_weight(0.0))}). That is why "
        "groups whose responses are all right or all wrong are masked."
    )
    lines = evenly(known, _STAGES) if len(known) > 1 else []
    shares, weight = _shares_picture(overall, lines), _weight_picture(bins)
    return figure(
        "Variance weight by success probability",
        "bars: all groups by the share p of right responses; below: (1\u2212s)/s with "
        "s = √(p(1\u2212p) + ε), ε = 10⁻⁴, the standard deviation if a right response is worth 1 "
        "and any other 0",
        chart_markup("groups by success probability", shares),
        chart_markup("variance weight by success probability", weight),
        tag("p", words, class_="remark muted"),
    )


def _shares_picture(every: Shares, stages: Sequence[tuple[int, Shares]]) -> Picture:
    bins = len(every) - 1
    x, y = _axis(bins), Axis("share of groups", low=0)
    bars = [
        bar(
            (place - 0.4) / bins,
            (place + 0.4) / bins,
            share,
            "all stages",
            f"{plain(place / bins)} right: {plain(share)} of groups",
        )
        for place, share in enumerate(every)
        if share
    ]
    under = histogram(x, y, bars, {"all stages": "bar"})
    xs = [place / bins for place in range(bins + 1)]
    traces = [
        Trace(xs, shares, series=f"stage {stage}", color=run_hue(hue))
        for hue, (stage, shares) in enumerate(stages)
    ]
    lines = line_chart(x, y, traces, under=[under], width=_WIDTH, height=200)
    return lines or Picture([under], _WIDTH, 200)


def _weight_picture(bins: int) -> Picture:
    steps = [(1 - math.cos(math.pi * step / _CURVE)) / 2 for step in range(_CURVE + 1)]
    y = Axis("(1\u2212s)/s", log=True)
    trace = Trace(steps, [_weight(p) for p in steps])
    curve = line_chart(_axis(bins), y, [trace], width=_WIDTH, height=200)
    inner = [place / bins for place in range(1, bins)]
    assert curve is not None
    return replace(curve, layers=[*curve.layers, _dots(inner)], hover=[])


def _dots(shares: Sequence[float]) -> alt.Chart:
    """Return dots on the curve at the shares that a group can have."""
    rows = [
        {"x": p, "y": _weight(p), "title": f"{plain(p)} right: {plain(_weight(p))}"} for p in shares
    ]
    chart = alt.Chart(inline(rows), name="dots")
    mark: alt.Chart = chart.mark_circle(size=40, opacity=1, color=color("run-0"))
    return mark.encode(x="x:Q", y="y:Q", tooltip="title:N")


def _axis(bins: int) -> Axis:
    return Axis("success probability", low=-0.5 / bins, high=1 + 0.5 / bins, ticks=_TICKS)


def _weight(p: float) -> float:
    s = math.sqrt(p * (1 - p) + _EPS)
    return (1 - s) / s


def _bins(run: RunData) -> int:
    """Return the number of steps from 0 to 1: the group size (2 to 32), or 32 if it is unknown."""
    size = run.options.get("schedule.group_size")
    return min(_MOST_BINS, max(2, size)) if isinstance(size, int) else _MOST_BINS


def _counts(line: Line, bins: int) -> list[float]:
    """Return the number of groups per bin. The first and last hold only shares of 0 and 1."""
    counts = [0.0] * (bins + 1)
    for key in line:
        count = number(line, key) if key.startswith(_PREFIX) else None
        share = _share(key.removeprefix(_PREFIX))
        if share is not None and count is not None and 1 <= count < _MOST_GROUPS:
            place = min(bins - 1, max(1, round(share * bins))) if 0 < share < 1 else share * bins
            counts[int(place)] += count
    return counts


def _share(text: str) -> float | None:
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None


def _shares(counts: Sequence[float]) -> Shares:
    total = sum(counts)
    return [count / total for count in counts]
