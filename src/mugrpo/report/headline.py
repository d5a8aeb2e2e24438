"""A run's options and results: numbers in large type, and tables with a column per run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from mugrpo.disk.metrics import PHASES
from mugrpo.report.costs import (
    GRPO_UPDATES_PER_REFRESH,
    grpo_cost,
    phase_seconds,
    refresh_parts,
    spans,
    training_seconds,
)
from mugrpo.report.figures import run_hue
from mugrpo.report.markup import Content, Markup, cut, join, tag
from mugrpo.report.read import RunData, accuracy_text, column, number
from mugrpo.report.readable import MISSING, duration

_LONGEST_OPTION = 300  # characters shown of an option's value

_ESSENTIAL = (
    "model.path",
    "task.name",
    "preset",
    "advantage.name",
    "objective.name",
    "objective.ratio_clip",
    "veto.name",
    "veto.kappa",
    "reference.name",
    "reduction",
    "optimizer.lr",
    "optimizer.lr_schedule",
    "schedule.stages",
    "schedule.batches_per_stage",
    "schedule.growth",
    "schedule.passes_per_batch",
    "schedule.problems_per_update",
    "schedule.group_size",
    "rollouts.temperature",
    "rollouts.max_new_tokens",
    "seed",
)
_VERSIONS = ("mugrpo", "torch", "transformers", "numpy", "git_revision")


def tiles(run: RunData) -> Markup:
    """Return the run's result in four numbers."""
    grpo = -(-run.made // GRPO_UPDATES_PER_REFRESH)
    planned = run.planned_updates
    return tag(
        "div",
        _accuracy_tile(run),
        _tile(
            "training time",
            duration(training_seconds(run)),
            f"and {duration(phase_seconds(spans(run))['evaluate'])} of evaluation",
        ),
        _tile(
            "refreshes",
            f"{run.refreshed:,}",
            None
            if run.options.get("preset") == "grpo"
            else f"GRPO with μ = {GRPO_UPDATES_PER_REFRESH} would have made {grpo:,}",
        ),
        _tile(
            "updates",
            f"{run.made:,}",
            "all that were planned"
            if planned == run.made
            else f"of {planned:,} planned"
            if planned
            else None,
        ),
        class_="tiles",
    )


def results_table(runs: Sequence[RunData]) -> Markup:
    """Return a table of results with a column per run."""
    rows: list[tuple[str, Callable[[RunData], Content]]] = [
        ("accuracy before", lambda run: accuracy_ends(run)[0]),
        ("accuracy after", lambda run: accuracy_ends(run)[1]),
        ("updates made", lambda run: f"{run.made:,}"),
        ("updates planned", lambda run: _whole(run.planned_updates)),
        ("updates skipped", lambda run: _whole(_skipped(run))),
        ("refreshes made", lambda run: f"{run.refreshed:,}"),
        (
            f"refreshes of GRPO, μ = {GRPO_UPDATES_PER_REFRESH}",
            lambda run: f"{-(-run.made // GRPO_UPDATES_PER_REFRESH):,}",
        ),
        ("rollouts", lambda run: _whole(_total(run, "rollouts"))),
        ("response tokens", lambda run: _whole(_total(run, "tokens"))),
        ("training time", lambda run: duration(training_seconds(run))),
        *((f"  {phase}", lambda run, phase=phase: _phase(run, phase)) for phase in PHASES),
        (
            f"training time at GRPO's refreshes, μ = {GRPO_UPDATES_PER_REFRESH}",
            lambda run: duration(cost.training_seconds) if (cost := grpo_cost(run)) else MISSING,
        ),
    ]
    body = [(name, [cell(run) for run in runs]) for name, cell in rows]
    return _table(runs, body)


def config_table(runs: Sequence[RunData]) -> Markup:
    """Return a table of the main options, of all that differ between runs, and of versions."""
    names = [name for name in _ESSENTIAL if any(name in run.options for run in runs)]
    all_names = dict.fromkeys(name for run in runs for name in run.options)
    names += [name for name in all_names if name not in names and _differs(runs, name)]
    body: list[tuple[str, list[Content]]] = [
        (name, [_option(run.options, name) for run in runs]) for name in names
    ]
    for name in _VERSIONS:
        if any(run.provenance.get(name) is not None for run in runs):
            body.append((name, [_option(run.provenance, name) for run in runs]))
    return _table(runs, body, marked={name for name in names if _differs(runs, name)})


def full_config(run: RunData) -> Markup:
    """Return every option and the run's provenance, collapsed."""
    everything = {"config": run.config, "provenance": run.provenance}
    text, note = cut(json.dumps(everything, indent=2, ensure_ascii=False), 20_000)
    return tag(
        "details",
        tag("summary", f"config.json of {run.name}"),
        tag("pre", text),
        tag("p", note, class_="muted") if note else None,
    )


def accuracy_ends(run: RunData) -> tuple[str, str]:
    """Return the accuracy of the first and of the last evaluation, as text with intervals."""
    if not run.evaluations:
        return MISSING, MISSING
    first, last = (accuracy_text(run.evaluations[i]) for i in (0, -1))
    return first, (last if len(run.evaluations) > 1 else MISSING)


def run_name(runs: Sequence[RunData], index: int) -> Markup:
    """Return a run's name, after a swatch of its color if there are several runs."""
    swatch = tag("i", class_=f"swatch {run_hue(index)}") if len(runs) > 1 else None
    return tag("span", swatch, runs[index].name, class_="run-name")


def _accuracy_tile(run: RunData) -> Markup:
    if not run.evaluations:
        return _tile("accuracy", MISSING, "no evaluation yet")
    ends = [text.partition(" (") for text in accuracy_ends(run)]
    before, after = (share for share, _, _ in ends)
    around = [f"({text}" for _, _, text in ends if text]
    last = f"update {run.evaluations[-1]['update']:,}"
    held_out = number(run.evaluations[-1], "problems")
    of = f", {held_out:,.0f} held-out problems" if held_out else ""
    if len(run.evaluations) == 1:
        return _tile("accuracy", before, " ".join([f"after {last}{of}", *around[:1]]))
    change = join([before, tag("span", " \u2192 ", class_="arrow"), after])
    note = f"; 95 % intervals {', '.join(around)}" if around else ""
    return _tile("accuracy", change, f"before and after {last}{of}{note}")


def _tile(name: str, value: Content, note: Content) -> Markup:
    return tag(
        "div",
        tag("div", name, class_="tile-name"),
        tag("div", value, class_="tile-value"),
        tag("div", note, class_="tile-note") if note else None,
    )


def _table(
    runs: Sequence[RunData],
    rows: Sequence[tuple[str, Sequence[Content]]],
    *,
    marked: set[str] | frozenset[str] = frozenset(),
) -> Markup:
    several = len(runs) > 1
    heads = [tag("th", run_name(runs, i), scope="col") for i in range(len(runs))]
    head = tag("thead", tag("tr", tag("td"), *heads)) if several else None
    body = [
        tag(
            "tr",
            tag("th", name.strip(), scope="row", class_="sub" if name.startswith(" ") else None),
            *(tag("td", cell) for cell in cells),
            class_="differs" if name in marked else None,
        )
        for name, cells in rows
    ]
    return tag("div", tag("table", head, tag("tbody", *body)), class_="scroll")


def _option(options: dict[str, Any], name: str) -> str:
    if name not in options:
        return MISSING
    value = options[name]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    kept, note = cut(text, _LONGEST_OPTION)
    return f"{kept} … ({note})" if note else kept


def _differs(runs: Sequence[RunData], name: str) -> bool:
    return any(run.options.get(name) != runs[0].options.get(name) for run in runs)


def _skipped(run: RunData) -> float:
    return sum(value or 0 for value in column(run.updates, "skipped"))


def _total(run: RunData, key: str) -> float | None:
    known = [value for value in column(run.refreshes, key) if value is not None]
    return sum(known) if known else None


def _phase(run: RunData, phase: str) -> str:
    """Return the total time of a phase, as text."""
    if phase == "refresh" and all(number(line, "time/refresh") is None for line in run.refreshes):
        return "not measured"
    text = duration(phase_seconds(spans(run))[phase])
    parts = refresh_parts(run.refreshes) if phase == "refresh" else {}
    if len(parts) > 1:
        text += f" ({', '.join(f'{name} {duration(s)}' for name, s in parts.items())})"
    return text


def _whole(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"
