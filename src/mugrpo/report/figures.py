"""The charts that runs share: one color a run, against updates, training time or staleness."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median

from mugrpo.report.charts import Axis, Chart, Values
from mugrpo.report.costs import training_clock
from mugrpo.report.markup import Content, Markup, join, tag
from mugrpo.report.read import RunData, column, number
from mugrpo.report.scale import plain

_HUES = 8
_BOUNDARIES_IN_FULL = 20  # refreshes beyond this are ticks at the top, not lines
_STALENESS_BINS = 16
_TICKS = 6
_LOG_FROM = 60  # greatest over median: beyond it a linear axis shows only the greatest
_LOG_SPAN = 1e-6  # share of the greatest below which values stand at the edge of a log axis


@dataclass(frozen=True)
class Series:
    """A key of the update lines, how it is called, and how it is drawn where runs are compared."""

    key: str
    label: str = ""
    style: str = ""
    hue: int | None = None  # of its own, where there is one run only


@dataclass(frozen=True)
class Panel:
    """What a chart shows: its title, a sentence on what it means, its unit and its series."""

    title: str
    note: str
    unit: str
    series: Sequence[Series]
    low: float | None = None
    log: bool | None = None  # None: where the values ask for it
    band: tuple[str, str] | None = None


def run_css(index: int) -> str:
    """The color of the `index`-th run; after eight runs they repeat, dashed."""
    return f"run-{index % _HUES}" + (" dashed" if index >= _HUES else "")


def figure(title: str, note: Content, *content: Content, css: str = "") -> Markup:
    caption = tag("figcaption", tag("strong", title), tag("span", note) if note else None)
    return tag("figure", caption, *content, class_=css or None)


def legend(items: Sequence[tuple[str, str]], css: str = "legend") -> Markup:
    """(classes of the sample, words) side by side."""
    return tag("ul", *(tag("li", swatch(look), words) for look, words in items), class_=css)


def swatch(css: str) -> Markup:
    """A legend's sample: a line, or a filled square where `css` begins with "bar" or "band"."""
    if css.startswith(("bar", "band")):
        shape = tag("rect", x=0, y=1, width=12, height=10, class_=css)
        return tag("svg", shape, viewBox="0 0 12 12", width=12, height=12, aria_hidden="true")
    shape = tag("path", d="M1 6h20", class_=f"line {css}")
    return tag("svg", shape, viewBox="0 0 22 12", width=22, height=12, aria_hidden="true")


def run_legend(runs: Sequence[RunData]) -> Markup | None:
    if len(runs) < 2:
        return None
    return legend([(run_css(index), run.name) for index, run in enumerate(runs)], "legend runs")


def update_figure(runs: Sequence[RunData], panel: Panel) -> Markup | None:
    """`panel` against updates, with the refreshes marked. None where nothing was measured."""
    chart = Chart(update_axis(runs), Axis(panel.unit, _is_log(runs, panel), _low(runs, panel)))
    mark_refreshes(chart, runs)
    for index, run in _first_on_top(runs):
        xs = [line["update"] for line in run.updates]
        _draw(chart, runs, index, panel, xs, partial(column, run.updates))
    return _finished(chart, runs, panel)


def staleness_figure(runs: Sequence[RunData], panel: Panel) -> Markup | None:
    """`panel` against staleness: the median over the updates of each bin ("max": the greatest)."""
    chart = Chart(Axis("staleness, updates"), Axis(panel.unit, _is_log(runs, panel), panel.low))
    for index, run in _first_on_top(runs):
        bins = staleness_bins(run)

        def binned(key: str, bins: list[list[int]] = bins, run: RunData = run) -> Values:
            values = column(run.updates, key)
            merge = max if key.endswith("/max") else median
            known = [[v for i in bin_ if (v := values[i]) is not None] for bin_ in bins]
            return [merge(found) if found else None for found in known]

        stalenesses = column(run.updates, "staleness")
        xs = [sum(stalenesses[i] or 0.0 for i in bin_) / len(bin_) for bin_ in bins]
        _draw(chart, runs, index, panel, xs, binned)
    words = "median of the updates in each bin of staleness; max: the greatest"
    return _finished(chart, runs, replace(panel, title=f"{panel.title}, by staleness", note=words))


def staleness_bins(run: RunData) -> list[list[int]]:
    """Places in `run.updates` by staleness: at most 16 bins of equal width, none of them empty."""
    stalenesses = column(run.updates, "staleness")
    known = [s for s in stalenesses if s is not None]
    if not known:
        return []
    width = max(1, math.ceil((max(known) + 1) / _STALENESS_BINS))
    bins: dict[int, list[int]] = {}
    for place, staleness in enumerate(stalenesses):
        if staleness is not None:
            bins.setdefault(int(staleness // width), []).append(place)
    return [bins[key] for key in sorted(bins)]


def accuracy_figures(runs: Sequence[RunData]) -> list[Markup]:
    """Accuracy on the held-out problems against updates, and against training time."""
    if not any(number(line, "accuracy") is not None for run in runs for line in run.evaluations):
        return []
    clocks = [training_clock(run) for run in runs]
    divisor, unit = time_unit(max((t for clock in clocks for t in clock.values()), default=0.0))
    by_update = _accuracy_chart(update_axis(runs))
    by_time = _accuracy_chart(Axis(f"training time, {unit}", low=0))
    mark_refreshes(by_update, runs)
    for index, (run, clock) in enumerate(zip(runs, clocks, strict=True)):
        updates = [float(line["update"]) for line in run.evaluations]
        seconds = [clock["evaluation", line["update"]] / divisor for line in run.evaluations]
        values = column(run.evaluations, "accuracy")
        titles = [
            f"{run.name}, update {line['update']}: {plain(value)}"
            for line, value in zip(run.evaluations, values, strict=True)
        ]
        last = next((v for v in reversed(values) if v is not None), None)
        for chart, xs in ((by_update, updates), (by_time, seconds)):
            css, label = run_css(index), None if last is None else f"{last:.3f}"
            chart.line(xs, values, css=f"{css} thick", label=label)
            chart.scatter(xs, values, css=css, titles=titles)
    return [
        figure(
            "Accuracy against updates",
            "share of right responses to the held-out problems" + _boundary_words(runs),
            by_update.svg("accuracy against updates"),
        ),
        figure(
            "Accuracy against wall-clock",
            "training time: generation, scoring, optimization, checkpoints and refreshes, added up "
            "from their durations; evaluation is left out",
            by_time.svg("accuracy against training time"),
        ),
    ]


def reward_figure(runs: Sequence[RunData]) -> Markup | None:
    """The behavior policy's reward by stage; for one run with the rewards of its batches."""
    chart = Chart(update_axis(runs), Axis("mean reward"))
    mark_refreshes(chart, runs)
    for index, run in _first_on_top(runs):
        xs = [line["update"] for line in run.updates]
        if len(runs) == 1:
            chart.line(xs, column(run.updates, "batch_reward"), css=f"{run_css(index)} faint")
        steps, rewards = reward_steps(run)
        chart.line(steps, rewards, css=f"{run_css(index)} thick")
    if chart.empty:
        return None
    note = "of each stage's rollouts: flat within a stage, as its behavior policy is"
    batches = "; thin: the batches it is made of" if len(runs) == 1 else ""
    return figure("Behavior reward", note + batches, chart.svg("behavior reward"))


def reward_steps(run: RunData) -> tuple[list[float], Values]:
    """Each stage's behavior reward from its refresh to the next, or to the last update made."""
    begins = [float(update) for update in run.refresh_updates]
    last = float(run.updates[-1]["update"]) if run.updates else 0.0
    ends = [*begins[1:], max(last, *begins[-1:])] if begins else []
    rewards = column(run.refreshes, "behavior_reward")
    xs = [at for begin, end in zip(begins, ends, strict=True) for at in (begin, end)]
    return xs, [reward for reward in rewards for _ in range(2)]


def update_axis(runs: Sequence[RunData]) -> Axis:
    """From 0; one run's few refreshes and its last update are the ticks, where they have room."""
    ticks = sorted({line["update"] for line in runs[0].refreshes + runs[0].updates[-1:]})
    apart = [b - a for a, b in pairwise(ticks)]
    fitting = len(runs) == 1 and len(runs[0].refreshes) <= _TICKS and len(ticks) > 1
    if fitting and min(apart) >= ticks[-1] / (_TICKS + 1):
        return Axis("updates", low=0, ticks=ticks)
    return Axis("updates", low=0)


def mark_refreshes(chart: Chart, runs: Sequence[RunData]) -> None:
    """Where stages begin: lines for one run of few stages, else a row of ticks for each run."""
    for index, run in enumerate(runs):
        rug = _rugs(runs)
        chart.markers(run.refresh_updates, css=run_css(index) if rug else "boundary", rug=rug)


def time_unit(seconds: float) -> tuple[float, str]:
    """(seconds in it, its name): the unit in which an axis up to `seconds` reads well."""
    if seconds < 180:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")


def _accuracy_chart(x: Axis) -> Chart:
    return Chart(x, Axis("accuracy", low=0, high=1), width=580, height=300)


def _first_on_top(runs: Sequence[RunData]) -> list[tuple[int, RunData]]:
    """(index, run) in the order of drawing: dense lines of later runs hide none of the first."""
    return list(enumerate(runs))[::-1]


def _rugs(runs: Sequence[RunData]) -> bool:
    return len(runs) > 1 or len(runs[0].refreshes) > _BOUNDARIES_IN_FULL


def _boundary_words(runs: Sequence[RunData]) -> str:
    if not any(run.refreshes for run in runs):
        return ""
    return f"; {'ticks at the top' if _rugs(runs) else 'dashed lines'} are refreshes"


def _draw(
    chart: Chart,
    runs: Sequence[RunData],
    index: int,
    panel: Panel,
    xs: Sequence[float],
    values: Callable[[str], Values],
) -> None:
    alone = len(runs) == 1
    if panel.band:
        chart.band(xs, values(panel.band[0]), values(panel.band[1]), css=run_css(index))
    for series in panel.series:
        own = alone and series.hue is not None
        css = f"run-{series.hue}" if own else f"{run_css(index)} {series.style}".strip()
        label = series.label if alone and series.label else None
        chart.line(xs, values(series.key), css=css, label=label)


def _finished(chart: Chart, runs: Sequence[RunData], panel: Panel) -> Markup | None:
    if chart.empty:
        return None
    several = len(runs) > 1 and len(panel.series) > 1
    styles = [(f"neutral {series.style}", series.label) for series in panel.series]
    styles += [("band neutral", "p01 to p99")] if panel.band else []
    key = legend(styles) if several else None
    return figure(panel.title, panel.note, join([key, chart.svg(panel.title)]))


def _values(runs: Sequence[RunData], panel: Panel) -> list[float]:
    keys = [series.key for series in panel.series]
    found = (value for run in runs for key in keys for value in column(run.updates, key))
    return [value for value in found if value is not None]


def _is_log(runs: Sequence[RunData], panel: Panel) -> bool:
    if panel.log is not None:
        return panel.log
    values = _values(runs, panel)
    positive = [value for value in values if value > 0]
    return bool(positive) and min(values) >= 0 and max(positive) > _LOG_FROM * median(positive)


def _low(runs: Sequence[RunData], panel: Panel) -> float | None:
    """The axis's lower bound: the panel's, or on a log axis what keeps it readable."""
    if panel.log is None and _is_log(runs, panel):
        values = [value for value in _values(runs, panel) if value > 0]
        return max(min(values), max(values) * _LOG_SPAN)
    return panel.low
