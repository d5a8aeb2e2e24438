"""Charts that runs cannot share: a run's time, statuses and response lengths, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from mugrpo.disk.metrics import PHASES
from mugrpo.report.axes import Axis
from mugrpo.report.charts import Picture, words
from mugrpo.report.costs import (
    GRPO_UPDATES_PER_REFRESH,
    Span,
    grpo_cost,
    phase_seconds,
    spans,
    training_seconds,
)
from mugrpo.report.figures import drawn, run_label
from mugrpo.report.markup import Markup, fold, join, tag
from mugrpo.report.read import Line, RunData, number
from mugrpo.report.readable import duration
from mugrpo.report.rows import Part, Row, bar, grouped, histogram, stacked_rows

_ROWS = 24  # most rows of a stacked chart; more stages share rows
_PARTS = 160  # most parts of a timeline's row; if one has more, all rows are added up by phase
_BINS = 24
_WIDE = 480  # pixels of a chart that has a row to itself

_GRPO = f"GRPO with μ = {GRPO_UPDATES_PER_REFRESH}"

_STATUSES = ("right", "wrong", "no_answer", "truncated", "unfinished", "skipped", "error")


def timeline_figure(run: RunData) -> Markup | None:
    """Return a chart with a row per stage: its phases in the order of the work, all to one scale.

    Return None if the run has no durations.
    """
    timeline = spans(run)
    if not timeline:
        return None
    count = timeline[-1].stage + 1
    stretches = grouped(count, _ROWS)
    phases = [_phases([s for s in timeline if s.stage in stages]) for stages in stretches]
    added_up = any(len(row) > _PARTS for row in phases)
    totals = phase_seconds(timeline)
    names = {phase: f"{phase} {duration(spent)}" for phase, spent in totals.items() if spent}
    rows = []
    for stages, row in zip(stretches, phases, strict=True):
        if added_up:
            row = [(phase, sum(s for p, s in row if p == phase)) for phase in PHASES]
        parts = [_phase_part(phase, seconds, names[phase]) for phase, seconds in row if seconds]
        rows.append(Row(_stages(stages), parts, duration(sum(part.value for part in parts))))
    hues = {names[phase]: phase for phase in PHASES if phase in names}
    note = "in the order of the work; all rows are to one scale"
    if count > len(rows):
        note += f"; a row holds {len(stretches[0])} stages"
    if added_up:
        note += "; phases are added up within a row"
    return drawn("Time by phase", note, stacked_rows(rows, hues, _WIDE))


def totals_figure(runs: Sequence[RunData]) -> Markup | None:
    """Return a chart of the total time of each phase: a bar per run, all to one scale.

    A single run is compared with the cost of its updates under GRPO with mu = 4. Return None if
    there is nothing to compare.
    """
    totals = [(run_label(run, runs), phase_seconds(spans(run))) for run in runs]
    cost = grpo_cost(runs[0])
    if len(runs) == 1 and cost and cost.refreshes != runs[0].refreshed:
        refresh = cost.refreshes * cost.refresh_seconds
        totals = [("this run", totals[0][1]), (_GRPO, {**totals[0][1], "refresh": refresh})]
    if len(totals) < 2 or not any(seconds for _, total in totals for seconds in total.values()):
        return None
    rows = [
        Row(
            name,
            [_phase_part(phase, seconds, phase) for phase, seconds in total.items() if seconds],
            duration(sum(total.values())),
        )
        for name, total in totals
    ]
    phases = [phase for phase in PHASES if any(total[phase] for _, total in totals)]
    title = "Total time by phase" if len(runs) > 1 else "The same updates with GRPO's refreshes"
    note = "added up over the run; all bars are to one scale"
    return drawn(title, note, stacked_rows(rows, {phase: phase for phase in phases}, _WIDE))


def grpo_words(run: RunData) -> Markup:
    """Return a remark on the time that the same updates would take under GRPO with mu = 4."""
    cost, updates, refreshes = grpo_cost(run), run.made, run.refreshed
    if cost is None:
        remark = (
            f"The cost of these updates under {_GRPO} is unknown: no refresh of this run was "
            "measured (time/refresh)."
        )
        return tag("p", remark, class_="remark")
    refresh = join(
        [
            tag("b", duration(cost.refresh_seconds)),
            f" per refresh (handing over weights and checking them; mean of {cost.measured:,})",
        ]
    )
    if cost.refreshes == refreshes:
        remark = f"This run made the {refreshes:,} refreshes that {_GRPO} would make, at "
        return tag("p", remark, refresh, ".", class_="remark")
    actual = training_seconds(run)
    difference = cost.training_seconds - actual
    change = f"{duration(abs(difference))} {'more' if difference >= 0 else 'less'}"
    return tag(
        "p",
        f"{_GRPO} would have refreshed ",
        tag("b", f"{cost.refreshes:,} times"),
        f" over these {updates:,} updates instead of {refreshes:,}. At the measured ",
        refresh,
        " its training time would be ",
        tag("b", duration(cost.training_seconds)),
        f" instead of {duration(actual)}: {change}.",
        class_="remark",
    )


def grpo_limits(runs: Sequence[RunData]) -> Markup | None:
    """Return a remark on the limits of `grpo_words`, or None if they estimate nothing."""
    costs = [(grpo_cost(run), run.refreshed) for run in runs]
    if not any(cost and cost.refreshes != refreshes for cost, refreshes in costs):
        return None
    remark = (
        f"Time under {_GRPO} is arithmetic on measured durations, not a run of GRPO. It assumes "
        "that generation, scoring and optimization take as long as they did here, although small "
        "batches generate less efficiently. It says nothing about the accuracy that GRPO would "
        "have reached."
    )
    return tag("p", remark, class_="remark muted")


def status_figures(run: RunData) -> list[Markup | None]:
    """Return charts of the counts of statuses, by stage and by evaluation."""
    both = (
        ("Statuses by stage", "rollouts of each stage", run.refreshes, "stage"),
        ("Statuses by evaluation", "held-out responses after each update", run.evaluations, ""),
    )
    figures: list[Markup | None] = []
    for title, note, lines, kind in both:
        names = _status_names(lines)
        if not names:
            continue
        labels = [f"{place}" if kind else f"{line['update']:,}" for place, line in enumerate(lines)]
        rows = _status_rows(lines, names, labels, kind)
        hues = {_status(name): _status_hue(name) for name in names}
        figures.append(drawn(title, note, stacked_rows(rows, hues)))
    return figures


def length_figures(run: RunData) -> Markup | None:
    """Return histograms of lengths by finish reason, for some stages, all on the same axes.

    They are folded, as stages rarely differ much. Return None if no lengths are known.
    """
    stages = sorted(run.lengths)
    if not stages:
        return None
    longest = max(int(sizes.max()) for s in stages for sizes in run.lengths[s].values())
    width = max(1, -(-(longest + 1) // _BINS))
    edges = np.arange(0, longest + width + 1, width)
    reasons = list(dict.fromkeys(reason for s in stages for reason in run.lengths[s]))
    counts = {
        (s, reason): np.histogram(run.lengths[s].get(reason, np.empty(0)), edges)[0]
        for s in stages
        for reason in reasons
    }
    highest = max(np.sum([counts[s, r] for r in reasons], axis=0).max() for s in stages)
    hues = {f"finished by {words(reason)}": _reason_hue(reason) for reason in reasons}
    figures = []
    for stage in stages:
        bars = [
            bar(
                float(edges[place]),
                float(edges[place + 1]),
                int(count),
                f"finished by {words(reason)}",
                f"{edges[place]} to {edges[place + 1] - 1} tokens, {words(reason)}: {count:,}",
            )
            for reason in reasons
            for place, count in enumerate(counts[stage, reason])
            if count
        ]
        x = Axis("response tokens", low=0, high=float(edges[-1]))
        y = Axis("rollouts", low=0, high=float(highest) * 1.05)
        tokens = np.concatenate(list(run.lengths[stage].values()))
        note = f"{len(tokens):,} responses, median {np.median(tokens):.0f}, longest {tokens.max()}"
        picture = Picture([histogram(x, y, bars, hues)], height=170)
        figures.append(drawn(f"Stage {stage}", note, picture))
    heading = "Response lengths"
    if len(stages) < run.rollout_stages:
        heading += f", {len(stages)} of {run.rollout_stages} stages"
    return fold(heading, tag("div", *figures, class_="grid"))


def _phases(timeline: Sequence[Span]) -> list[tuple[str, float]]:
    """Return (phase, seconds) in order, with neighbors of the same phase merged."""
    runs = groupby(timeline, key=lambda span: span.phase)
    return [(phase, sum(span.seconds for span in run)) for phase, run in runs]


def _phase_part(phase: str, seconds: float, kind: str) -> Part:
    text = duration(seconds)
    return Part(seconds, kind, f"{phase}: {text}", text)


def _status_names(lines: Sequence[Line]) -> list[str]:
    """Return the statuses that occur, in the order of Status, unknown ones last."""
    keys = {key for line in lines for key in line if key.startswith("status/") and line[key]}
    names = {key.removeprefix("status/") for key in keys}
    known = [name for name in _STATUSES if name in names]
    return [*known, *sorted(names - set(known))]


def _status_rows(
    lines: Sequence[Line], names: Sequence[str], labels: Sequence[str], kind: str
) -> list[Row]:
    rows = []
    for places in grouped(len(lines), _ROWS):
        parts = []
        for name in names:
            count = sum(max(0, number(lines[place], f"status/{name}") or 0) for place in places)
            if count:
                text = f"{count:,.0f}"
                parts.append(Part(count, _status(name), f"{_status(name)}: {text}", text))
        total = sum(part.value for part in parts)
        several = f"{labels[places[0]]} to {labels[places[-1]]}" if len(places) > 1 else None
        label = _stages(places) if kind else f"update {several or labels[places[0]]}"
        rows.append(Row(label, parts, f"{total:,.0f}"))
    return rows


def _stages(places: range) -> str:
    return f"stage {places[0]}" if len(places) == 1 else f"stages {places[0]} to {places[-1]}"


def _status(name: str) -> str:
    return words(name.replace("_", " "))


def _status_hue(name: str) -> str:
    return name.replace("_", "-") if name in _STATUSES else "ink"


def _reason_hue(reason: str) -> str:
    return {"stop": "run-0", "length": "run-1"}.get(reason, "run-6")
