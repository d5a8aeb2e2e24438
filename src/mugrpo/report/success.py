"""How hard a run's groups are, and what the bound makes of that: the weight of their variance."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mugrpo.report.charts import Axis, Chart
from mugrpo.report.figures import figure, legend
from mugrpo.report.markup import Markup, tag
from mugrpo.report.read import Line, RunData, evenly, number
from mugrpo.report.scale import plain

_PREFIX = "groups_right/"
_EPS = 1e-4  # the bound's, inside the root
_STAGES = 4  # drawn as lines of their own
_MOST_BINS = 32
_MOST_GROUPS = 1e15  # a count beyond it is none
_CURVE = 256  # steps of the weight's curve, closer together towards its ends
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)

Shares = list[float]  # of a stage's groups, by bin


def variance_weight_figure(run: RunData) -> Markup | None:
    """Groups by the share of their responses that is right, above the bound's (1-s)/s of it."""
    bins = _bins(run)
    counts = [_counts(line, bins) for line in run.refreshes]
    known = [(stage, _shares(found)) for stage, found in enumerate(counts) if any(found)]
    if not known:
        return None
    every = _shares([sum(column) for column in zip(*counts, strict=True)])
    words = (
        f"The weight diverges at 0 and 1 (ε alone holds it at {plain(_weight(0.0))}), which is why "
        "groups whose responses are all right or all wrong are masked."
    )
    lines = evenly(known, _STAGES) if len(known) > 1 else []
    names = [("bar neutral faint", "all stages")]
    names += [(f"run-{hue}", f"stage {stage}") for hue, (stage, _) in enumerate(lines)]
    return figure(
        "Variance weight by success probability",
        "groups by the share p of right responses, and (1\u2212s)/s with s = √(p(1\u2212p) + ε), "
        "ε = 10⁻⁴: the standard deviation where a right response is worth 1, any other 0",
        legend(names) if lines else None,
        _shares_chart(every, [shares for _, shares in lines]),
        _weight_chart(bins),
        tag("p", words, class_="remark muted"),
    )


def _shares_chart(every: Shares, stages: Sequence[Shares]) -> Markup:
    bins = len(every) - 1
    chart = Chart(_axis(bins), Axis("share of groups", low=0), width=480, height=200)
    drawn = [place for place, share in enumerate(every) if share]
    chart.bars(
        [((place - 0.4) / bins, (place + 0.4) / bins) for place in drawn],
        [(0.0, every[place]) for place in drawn],
        css="neutral faint",
        titles=[f"{plain(place / bins)} right: {plain(every[place])} of groups" for place in drawn],
    )
    for hue, shares in enumerate(stages):
        chart.line([place / bins for place in range(bins + 1)], shares, css=f"run-{hue}")
    return chart.svg("groups by success probability")


def _weight_chart(bins: int) -> Markup:
    chart = Chart(_axis(bins), Axis("(1\u2212s)/s", log=True), width=480, height=200)
    steps = [(1 - math.cos(math.pi * step / _CURVE)) / 2 for step in range(_CURVE + 1)]
    chart.line(steps, [_weight(p) for p in steps], css="run-0")
    inner = [place / bins for place in range(1, bins)]
    titles = [f"{plain(p)} right: {plain(_weight(p))}" for p in inner]
    chart.scatter(inner, [_weight(p) for p in inner], css="run-0", titles=titles)
    return chart.svg("variance weight by success probability")


def _axis(bins: int) -> Axis:
    return Axis("success probability", low=-0.5 / bins, high=1 + 0.5 / bins, ticks=_TICKS)


def _weight(p: float) -> float:
    s = math.sqrt(p * (1 - p) + _EPS)
    return (1 - s) / s


def _bins(run: RunData) -> int:
    """Steps from 0 to 1: those of a group of the run's size."""
    size = run.options.get("schedule.group_size")
    return min(_MOST_BINS, max(2, size)) if isinstance(size, int) else _MOST_BINS


def _counts(line: Line, bins: int) -> list[float]:
    """Groups by the nearest bin. The first and the last hold only those of 0 and of 1."""
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
