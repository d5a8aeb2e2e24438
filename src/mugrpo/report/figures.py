"""The parts of a page, and charts that several runs share, in a color each.

The parts are the macros of parts.html, which no text can break out of. Names, prompts, responses
and options come from models, data sets and people. Whatever is not Markup is escaped on its way
into a macro, and characters that are invisible, or that reverse the text, get visible signs.
"""

import base64
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from mugrpo.disk.metrics import number
from mugrpo.report.charts import (
    BAR,
    TIMES,
    Axis,
    Bar,
    Line,
    Picture,
    Values,
    bar_layers,
    line_chart,
    page_parts,
    refresh_ticks,
    script,
    sheet,
    words,
)
from mugrpo.report.read import RunData, column, phase_seconds, training_clock
from mugrpo.report.readable import time_unit, with_signs

Content = str | Markup | None

_WIDE: dict[str, Any] = {"width": 480, "height": 300}  # pixels of a chart, two to a row
# Kind of the lines, prefix and suffix of their keys, title, note.
_REWARDS = ("refresh", "rewards/", "/mean", "Rewards", "mean over each stage's judged rollouts")
_LENGTH = ("refresh", "mean_length", "", "Response length", "tokens, mean over the stage")
_CUT = ("refresh", "truncated_share", "", "Truncated responses", "share of each stage's responses")
_BY_STAGE = (
    ("refresh", "logged/", "", "Logged", "mean over each stage's judged rollouts"),
    ("evaluation", "accuracy/", "", "Accuracy by source", "share of right responses"),
    ("refresh", "reward/", "", "Reward by source", "mean over its rollouts of the stage"),
    ("refresh", "share/", "", "Share of rollouts by source", "of the stage"),
)


def part(name: str, *content: Any, **options: Any) -> Markup:
    """Return the macro `name` of parts.html, called with these arguments. It may be empty."""
    made: Markup = getattr(_macros(), name)(*content, **options)
    return Markup(made.strip())


def drawn(title: str, note: str, picture: Picture | None) -> Markup | None:
    """Return the picture as a figure under its title, or None without a picture."""
    return part("figure", title, note, *page_parts(picture)) if picture else None


def document(title: str, content: Sequence[Content], every: int | None = None) -> str:
    """Return a whole page. Its security policy allows only its own script and style.

    A browser reloads it every `every` seconds.
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
    return value if hasattr(value, "__html__") else with_signs(str(value))


@dataclass(frozen=True)
class Panel:
    """A chart of numbers of the update lines: its title, a note, its unit, and key -> label."""

    title: str
    note: str
    unit: str
    series: dict[str, str]
    log: bool = False
    band: tuple[str, str] | None = None  # keys of the lower and upper edge


def run_label(run: RunData, runs: Sequence[RunData]) -> str:
    """Return a run's name for a legend: the end of a long name, numbered if it is not unique."""
    labels = [words(one.name[-40:]) for one in runs]
    place = runs.index(run)
    return labels[place] if labels.count(labels[place]) == 1 else f"{place + 1}. {labels[place]}"


def lines_of(
    runs: Sequence[RunData],
    points: Callable[[RunData, str], tuple[Sequence[float], Values]],
    series: dict[str, str],
    band: tuple[str, str] | None = None,
) -> list[Line]:
    """Return the lines of the runs, the first run last, so that none hides it.

    `points` returns the (xs, ys) of a run's key; `series` has the label of each key. Several runs
    have a color each, and their series a dash; the series of a single run have the colors.
    """
    lines, several = [], len(runs) > 1
    for index, run in reversed(list(enumerate(runs))):
        name = run_label(run, runs) if several else ""
        if band:
            (xs, lows), (_, highs) = (points(run, key) for key in band)
            label = name or next(iter(series.values()))
            lines.append(Line(xs, lows, label, index, uppers=highs))
        for place, (key, label) in reversed(list(enumerate(series.items()))):
            xs, ys = points(run, key)
            look = (name, index, label) if several else (label, place, "")
            lines.append(Line(xs, ys, *look))
    return lines


def update_figure(runs: Sequence[RunData], panel: Panel) -> Markup | None:
    """Return `panel` against updates with the refreshes marked, or None if it has no values."""
    lines = lines_of(runs, partial(points_of, "update"), panel.series, panel.band)
    picture = update_chart(runs, Axis(panel.unit, panel.log), lines)
    return drawn(panel.title, panel.note, picture)


def update_chart(
    runs: Sequence[RunData], y: Axis, lines: Sequence[Line], **size: Any
) -> Picture | None:
    """Return the lines against updates, with a row of ticks per run above: its refreshes."""
    marks = [
        refresh_ticks(run.refresh_updates, i, i) for i, run in enumerate(runs) if run.refreshes
    ]
    ends = [
        run.lines(kind)[-1]["update"]
        for run in runs
        for kind in ("update", "evaluation")
        if run.lines(kind)
    ]
    x = Axis("updates", low=0, high=max([1, *ends]))
    return line_chart(x, replace(y, rows=len(runs)), lines, under=marks, **size)


def headline_figures(runs: Sequence[RunData]) -> list[Markup | None]:
    """Return accuracy on the held-out problems against updates, and against training time.

    Of runs that have none, return the mean reward.
    """
    names = sorted({run.headline for run in runs})
    return [figure for name in names for figure in _of_evaluations(runs, name)]


def _of_evaluations(runs: Sequence[RunData], name: str) -> list[Markup | None]:
    clocks = {run.name: training_clock(run) for run in runs}
    divisor, unit = time_unit(max((t for c in clocks.values() for t in c.values()), default=0.0))

    def by_time(run: RunData, key: str) -> tuple[Sequence[float], Values]:
        clock = clocks[run.name]
        times = [clock["evaluation", line["update"]] / divisor for line in run.evaluations]
        return times, column(run.evaluations, key)

    band = (f"{name}_low", f"{name}_high")
    known = any(line.get(band[0]) is not None for run in runs for line in run.evaluations)
    share = name == "accuracy"
    method = "Wilson" if share else "Student's t"
    sure = f"; shaded: 95 % intervals over problems ({method})" if known else ""
    what = "share of right responses" if share else "mean reward of responses"
    ends = band if known else None
    by_update = lines_of(runs, partial(points_of, "evaluation"), {name: name}, ends)
    timed = lines_of(runs, by_time, {name: name}, ends)
    top = 1.2 * max((v for it in by_update for v in (*it.ys, *(it.uppers or ())) if v), default=1)
    y = Axis(name, low=0, high=top if top < 0.6 else 1) if share else Axis(name)
    return [
        drawn(
            f"{name.capitalize()} against updates",
            f"{what} to the held-out problems{sure}; ticks above are refreshes",
            update_chart(runs, y, by_update, **_WIDE),
        ),
        drawn(
            f"{name.capitalize()} against wall-clock",
            "training time: generation, scoring, optimization, checkpoints and refreshes, added up "
            "from their durations; evaluation is left out",
            line_chart(Axis(f"training time, {unit}", low=0), y, timed, **_WIDE),
        ),
    ]


def first_figures(runs: Sequence[RunData]) -> Iterator[Markup | None]:
    """Yield what answers whether a run learned and what it cost, besides its headline."""
    yield from _by_stage(runs, (_REWARDS, _LENGTH, _CUT))
    for panel in (
        Panel("Entropy", "of updates with a gradient", "nats per token", {"entropy": "entropy"}),
        Panel("Ratio of negatives", "A < 0; 1 if on policy", "", {"ratio/negative/mean": "mean"}),
    ):
        yield update_figure(runs, panel)
    yield drawn("Where the time went", "to scale, and the accuracy at the end", _times(runs))


def _times(runs: Sequence[RunData]) -> Picture | None:
    """Return a bar for each run: its phases to scale, and its accuracy or reward at the end."""
    spent = [phase_seconds(run) for run in runs]
    longest = max(sum(one.values()) for one in spent)
    if not longest:
        return None
    divisor, unit = time_unit(longest)
    bars = []
    for run, of in zip(runs, spent, strict=True):
        parts = {part: sum(of[p] for p in phases) / divisor for part, phases in TIMES.items()}
        last = number(run.evaluations[-1], run.headline) if run.evaluations else None
        end = "" if last is None else f"{last:.3f}"
        bars.append(Bar(run_label(run, runs) if len(runs) > 1 else "", parts, end))
    return Picture(bar_layers(Axis(unit), bars), height=BAR * len(bars))


def stage_figures(runs: Sequence[RunData]) -> Iterator[Markup | None]:
    """Yield charts by stage of what was logged, and of a mixture's sources."""
    yield from _by_stage(runs, _BY_STAGE)


def _by_stage(
    runs: Sequence[RunData], shown: Sequence[tuple[str, str, str, str, str]]
) -> Iterator[Markup | None]:
    for kind, prefix, suffix, title, note in shown:
        keys = list(dict.fromkeys(key for run in runs for key in run.keys(kind, prefix, suffix)))
        series = {key: words(key[len(prefix) : len(key) - len(suffix)] or title) for key in keys}
        points = partial(points_of, kind) if kind == "evaluation" else stage_steps
        # What functions log has units of its own: a chart for each.
        apart = [{key: name} for key, name in series.items()] if title == "Logged" else [series]
        for one in apart:
            axis = Axis("share" if "share" in note else "mean")
            chart = update_chart(runs, axis, lines_of(runs, points, one))
            yield drawn(" ".join([title, *one.values()][: 1 + (title == "Logged")]), note, chart)


def stage_steps(run: RunData, key: str) -> tuple[Sequence[float], Values]:
    """Return (xs, ys) of the refresh lines' `key`, each from its refresh to the next.

    The last stage extends to the last update.
    """
    begins = run.refresh_updates
    last = run.updates[-1]["update"] if run.updates else 0
    ends = [*begins[1:], max(last, *begins[-1:])] if begins else []
    xs = [at for step in zip(begins, ends, strict=True) for at in step]
    return xs, [value for value in column(run.refreshes, key) for _ in range(2)]


def points_of(kind: str, run: RunData, key: str) -> tuple[Sequence[float], Values]:
    """Return (xs, ys) of the numbers at `key` in a run's lines of `kind`."""
    lines = run.lines(kind)
    return [line["update"] for line in lines], column(lines, key)
