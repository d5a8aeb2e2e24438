"""The parts of a page, and charts that several runs share, in a color each.

The parts are the macros of parts.html, which no text can break out of. Names, prompts, responses
and options come from models, data sets and people. Whatever is not Markup is escaped on its way
into a macro, and characters that are invisible, or that reverse the text, get visible signs.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from statistics import median
from typing import Any

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from mugrpo.report.charts import (
    Axis,
    Picture,
    Trace,
    Values,
    line_chart,
    page_parts,
    refresh_lines,
    refresh_ticks,
    script,
    sheet,
    words,
)
from mugrpo.report.read import RunData, column, training_clock
from mugrpo.report.readable import time_unit, visible

Content = str | Markup | None


def part(name: str, *content: Any, **options: Any) -> Markup:
    """Return the macro `name` of parts.html, called with these arguments. It may be empty."""
    made: Markup = getattr(_macros(), name)(*content, **options)
    return Markup(made.strip())


def drawn(title: str, note: str, picture: Picture | None) -> Markup | None:
    """Return the picture as a figure under its title, or None without a picture."""
    return part("figure", title, note, *page_parts(picture)) if picture else None


def document(title: str, content: Sequence[Content], every: int | None = None) -> str:
    """Return a whole page. Its security policy allows only its own script and style.

    A browser loads it again `every` so many seconds.
    """
    style = sheet("colors.css") + sheet("style.css")
    policy = (
        f"default-src 'none'; script-src '{_digest(script())}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    made = part("document", title, content, every, policy, Markup(style), Markup(script()))
    return f"{made}\n"


def _digest(source: str) -> str:
    """Return a source's hash as a security policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


@cache
def _macros() -> Any:
    environment = Environment(
        autoescape=True,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(sheet),
    )
    return environment.get_template("parts.html").module


def _shown(value: Any) -> Any:
    if value is None:
        return ""
    return value if hasattr(value, "__html__") else visible(str(value))


_HUES = 8
_ENDS = ("", "_low", "_high")
_BOUNDARIES_IN_FULL = 20  # if a run has more refreshes, they are ticks at the top, not lines
_STALENESS_BINS = 16
_TICKS = 6
_LOG_FROM = 60  # greatest over median; beyond this, a linear axis would show only the greatest
_LOG_SPAN = 1e-6  # share of the greatest; smaller values are at the edge of a log axis
_WIDE = 480  # pixels of a chart, two to a row
_BY_STAGE = (  # kind of the lines, prefix and suffix of their keys, title, note
    ("refresh", "rewards/", "/mean", "Rewards", "mean over each stage's judged rollouts"),
    ("refresh", "logged/", "", "Logged", "mean over each stage's judged rollouts"),
    ("evaluation", "accuracy/", "", "Accuracy by source", "share of right responses"),
    ("refresh", "reward/", "", "Reward by source", "mean over its rollouts of the stage"),
    ("refresh", "share/", "", "Share of rollouts by source", "of the stage"),
    ("refresh", "mean_length", "", "Response length", "tokens, mean over the stage"),
)


@dataclass(frozen=True)
class Series:
    """A key of the update lines, with its label and style."""

    key: str
    label: str = ""
    style: str = ""
    hue: int | None = None  # its own color, used if there is only one run


@dataclass(frozen=True)
class Panel:
    """The contents of a chart: its title, a note on what it means, its unit and its series."""

    title: str
    note: str
    unit: str
    series: Sequence[Series]
    low: float | None = None
    log: bool | None = None  # None: decided by the values
    band: tuple[str, str] | None = None  # keys of the lower and upper edge


def run_hue(index: int) -> str:
    """Return the name of the `index`-th run's color. After eight runs the colors repeat, dashed."""
    return f"run-{index % _HUES}"


def run_label(run: RunData, runs: Sequence[RunData]) -> str:
    """Return a run's name for a legend: the end of a long name, numbered if it is not unique."""
    labels = [words(one.name[-40:]) for one in runs]
    place = runs.index(run)
    return labels[place] if labels.count(labels[place]) == 1 else f"{place + 1}. {labels[place]}"


def update_figure(runs: Sequence[RunData], panel: Panel) -> Markup | None:
    """Return `panel` against updates with the refreshes marked, or None if it has no values."""
    traces = []
    for index, run in _first_on_top(runs):
        xs = [line["update"] for line in run.updates]
        traces += _traces(runs, index, panel, xs, partial(column, run.updates))
    y = Axis(panel.unit, _is_log(runs, panel), _low(runs, panel))
    picture = update_chart(runs, y, traces)
    return drawn(panel.title, panel.note, picture)


def staleness_figure(runs: Sequence[RunData], panel: Panel) -> Markup | None:
    """Return `panel` against staleness, or None if it has no values.

    A point is the median over the updates in a bin, or their maximum for a "max" series.
    """
    traces = []
    for index, run in _first_on_top(runs):
        bins = staleness_bins(run)

        def binned(key: str, bins: list[list[int]] = bins, run: RunData = run) -> Values:
            values = column(run.updates, key)
            merge = max if key.endswith("/max") else median
            known = [[v for i in bin_ if (v := values[i]) is not None] for bin_ in bins]
            return [merge(numbers) if numbers else None for numbers in known]

        stalenesses = column(run.updates, "staleness")
        xs = [sum(stalenesses[i] or 0.0 for i in bin_) / len(bin_) for bin_ in bins]
        traces += _traces(runs, index, panel, xs, binned)
    note = "median over the updates in each bin of staleness; for max, the maximum"
    y = Axis(panel.unit, _is_log(runs, panel), panel.low)
    picture = line_chart(Axis("staleness, updates"), y, traces)
    return drawn(f"{panel.title}, by staleness", note, picture)


def staleness_bins(run: RunData) -> list[list[int]]:
    """Return indices of `run.updates` by staleness, in at most 16 bins of equal width.

    Empty bins are left out.
    """
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


def accuracy_figures(runs: Sequence[RunData]) -> list[Markup | None]:
    """Return accuracy on the held-out problems against updates, and against training time."""
    clocks = [training_clock(run) for run in runs]
    divisor, unit = time_unit(max((t for clock in clocks for t in clock.values()), default=0.0))
    by_update, by_time = list[Trace](), list[Trace]()
    for index, run in _first_on_top(runs):
        updates = [line["update"] for line in run.evaluations]
        seconds = [clocks[index]["evaluation", update] / divisor for update in updates]
        means, lows, highs = (column(run.evaluations, f"accuracy{end}") for end in _ENDS)
        known = (means, lows, highs) if any(low is not None for low in lows) else (means,)
        for traces, xs in ((by_update, list(map(float, updates))), (by_time, seconds)):
            traces += banded(xs, *known, label=run_label(run, runs), series="accuracy", hue=index)
    ends = [column(run.evaluations, "accuracy_low") for run in runs]
    measured = any(low is not None for lows in ends for low in lows)
    sure = "; shaded: 95 % intervals over problems (Wilson)" if measured else ""
    y = Axis("accuracy", low=0, high=1)
    look: dict[str, Any] = {"width": _WIDE, "height": 300, "ends": True}
    time = Axis(f"training time, {unit}", low=0)
    return [
        drawn(
            "Accuracy against updates",
            f"share of right responses to the held-out problems{sure}{_boundary_words(runs)}",
            update_chart(runs, y, by_update, **look),
        ),
        drawn(
            "Accuracy against wall-clock",
            "training time: generation, scoring, optimization, checkpoints and refreshes, added up "
            "from their durations; evaluation is left out",
            line_chart(time, y, by_time, **look),
        ),
    ]


def banded(
    xs: Sequence[float],
    means: Values,
    lows: Values = (),
    highs: Values = (),
    *,
    label: str,
    series: str,
    hue: int,
) -> list[Trace]:
    """Return the band of 95 % intervals, if there are any, and the line of `means` above it.

    They belong to the run or result `label`, the `hue`-th in the chart; the line is `series`.
    """
    line = Trace(xs, means, label, series, run_hue(hue), _run_style(hue, "thick"))
    band = replace(line, ys=lows, uppers=highs, series="95 % interval", style="band")
    return [band, line] if lows else [line]


def stage_figures(runs: Sequence[RunData]) -> Iterator[Markup | None]:
    """Yield charts by stage of each reward, of what was logged, and of a mixture's sources.

    Keys of one kind share a chart if there is a single run. Those of several runs have one each.
    """
    for kind, prefix, suffix, title, note in _BY_STAGE:
        keys = list(dict.fromkeys(key for run in runs for key in run.keys(kind, prefix, suffix)))
        names = {key: key[len(prefix) : len(key) - len(suffix)] for key in keys}
        shared = len(runs) == 1 and title != "Logged"
        for part in [keys] if shared else [[key] for key in keys]:
            traces = []
            for index, run in _first_on_top(runs):
                for hue, key in enumerate(part):
                    lines = run.evaluations
                    steps = ([float(line["update"]) for line in lines], column(lines, key))
                    xs, ys = steps if kind == "evaluation" else reward_steps(run, key)
                    color = run_hue(index if len(runs) > 1 else hue)
                    name = words(names[key] or title)
                    traces.append(Trace(xs, ys, run_label(run, runs), name, color, "thick"))
            chart = update_chart(runs, Axis("mean"), traces)
            yield drawn(title if shared else f"{title} {words(names[part[0]])}", note, chart)


def reward_figure(runs: Sequence[RunData]) -> Markup | None:
    """Return the behavior policy's reward by stage; for a single run, also that of each batch."""
    traces = []
    for index, run in _first_on_top(runs):
        xs = [line["update"] for line in run.updates]
        name, hue = run_label(run, runs), run_hue(index)
        if len(runs) == 1:
            values = column(run.updates, "batch_reward")
            traces.append(Trace(xs, values, name, "batches", hue, "faint"))
        style = _run_style(index, "thick")
        traces.append(Trace(*reward_steps(run), name, "stage", hue, style))
    picture = update_chart(runs, Axis("mean reward"), traces)
    note = "of each stage's rollouts; constant within a stage, like the behavior policy"
    batches = "; thin: each update's batch" if len(runs) == 1 else ""
    return drawn("Behavior reward", note + batches, picture)


def reward_steps(run: RunData, key: str = "behavior_reward") -> tuple[list[float], Values]:
    """Return (xs, ys) of the refresh lines' `key`, each from its refresh to the next.

    The last stage extends to the last update.
    """
    begins = [float(update) for update in run.refresh_updates]
    last = float(run.updates[-1]["update"]) if run.updates else 0.0
    ends = [*begins[1:], max(last, *begins[-1:])] if begins else []
    rewards = column(run.refreshes, key)
    xs = [at for begin, end in zip(begins, ends, strict=True) for at in (begin, end)]
    return xs, [reward for reward in rewards for _ in range(2)]


def update_axis(runs: Sequence[RunData]) -> Axis:
    """Return an axis from 0. A single run's refreshes and last update are its ticks if they fit."""
    ticks = sorted({line["update"] for line in runs[0].refreshes + runs[0].updates[-1:]})
    lines = [line for run in runs for line in (*run.refreshes, *run.updates, *run.evaluations)]
    axis = Axis("updates", low=0, high=max((line["update"] for line in lines), default=1) or 1)
    apart = [b - a for a, b in pairwise(ticks)]
    fitting = len(runs) == 1 and len(runs[0].refreshes) <= _TICKS and len(ticks) > 1
    if fitting and min(apart) >= ticks[-1] / (_TICKS + 1):
        return replace(axis, ticks=ticks)
    return axis


def update_chart(
    runs: Sequence[RunData], y: Axis, traces: Sequence[Trace], **look: Any
) -> Picture | None:
    """Return the traces against updates, with the refreshes marked.

    A refresh is a line if there is a single run with few refreshes. Otherwise it is a tick at the
    top, in a row per run.
    """
    marked = [(index, run.refresh_updates) for index, run in enumerate(runs) if run.refreshes]
    under = [refresh_lines(xs) for _, xs in marked]
    if _rugs(runs):
        under = [refresh_ticks(xs, index, run_hue(index)) for index, xs in marked]
        y = replace(y, above=len(runs))
    return line_chart(update_axis(runs), y, traces, under=under, **look)


def _first_on_top(runs: Sequence[RunData]) -> list[tuple[int, RunData]]:
    """Return (index, run) in drawing order: the first run is last, so that none hides it."""
    return list(enumerate(runs))[::-1]


def _rugs(runs: Sequence[RunData]) -> bool:
    """Return whether refreshes are ticks at the top rather than lines."""
    return len(runs) > 1 or len(runs[0].refreshes) > _BOUNDARIES_IN_FULL


def _boundary_words(runs: Sequence[RunData]) -> str:
    if not any(run.refreshes for run in runs):
        return ""
    return f"; {'ticks at the top' if _rugs(runs) else 'dashed lines'} are refreshes"


def _run_style(index: int, style: str) -> str:
    return style if index < _HUES else f"{style} dashed"


def _traces(
    runs: Sequence[RunData],
    index: int,
    panel: Panel,
    xs: Sequence[float],
    values: Callable[[str], Values],
) -> list[Trace]:
    name, hue, traces = run_label(runs[index], runs), run_hue(index), []
    if panel.band:
        lows, highs = map(values, panel.band)
        traces.append(Trace(xs, lows, name, "p01 to p99", hue, "band", highs))
    for series in panel.series:
        own = hue if series.hue is None or len(runs) > 1 else run_hue(series.hue)
        style = series.style if len(panel.series) > 1 else _run_style(index, series.style)
        traces.append(Trace(xs, values(series.key), name, words(series.label), own, style))
    return traces


def _values(runs: Sequence[RunData], panel: Panel) -> list[float]:
    keys = [series.key for series in panel.series]
    values = (value for run in runs for key in keys for value in column(run.updates, key))
    return [value for value in values if value is not None]


def _is_log(runs: Sequence[RunData], panel: Panel) -> bool:
    if panel.log is not None:
        return panel.log
    values = _values(runs, panel)
    positive = [value for value in values if value > 0]
    return bool(positive) and min(values) >= 0 and max(positive) > _LOG_FROM * median(positive)


def _low(runs: Sequence[RunData], panel: Panel) -> float | None:
    """Return the axis's lower bound: the panel's, or one that keeps a log axis readable."""
    if panel.log is None and _is_log(runs, panel):
        values = [value for value in _values(runs, panel) if value > 0]
        return max(min(values), max(values) * _LOG_SPAN)
    return panel.low
