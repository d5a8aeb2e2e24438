"""The page: sections in reading order, one style sheet, one script, and no network requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from markupsafe import Markup

from mugrpo.config.base import imported
from mugrpo.config.extensions import installed
from mugrpo.disk.metrics import PHASES
from mugrpo.report.figures import (
    Panel,
    Series,
    accuracy_figures,
    document,
    part,
    reward_figure,
    run_hue,
    stage_figures,
    staleness_figure,
    update_figure,
)
from mugrpo.report.read import (
    GRPO_UPDATES_PER_REFRESH,
    RunData,
    accuracy_text,
    column,
    grpo_cost,
    number,
    phase_seconds,
    refresh_parts,
    spans,
    training_seconds,
)
from mugrpo.report.readable import MISSING, cut, duration
from mugrpo.report.tokens import evaluated_groups, sampled_rollouts

_TOKENS_SHOWN = 9000  # of sampled rollouts in a whole page: about 100 bytes each
_LONGEST_OPTION = 300  # characters shown of an option's value
_GRPO = f"GRPO, μ = {GRPO_UPDATES_PER_REFRESH}"
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

POLICY = (
    Panel("Entropy", "of the policy", "nats per token", [Series("entropy")], low=0),
    Panel(
        "KL from the behavior policy",
        "KL(β‖π), estimated on β's samples",
        "nats per token",
        [Series("kl_behavior")],
        low=0,
    ),
    Panel(
        "Total variation",
        "from the behavior policy, estimated on its samples; whole responses saturate at 1",
        "total variation",
        [Series("tv_token", "tokens", hue=0), Series("tv_sequence", "responses", "dashed", hue=1)],
        low=0,
    ),
)

OPTIMIZATION = (
    Panel("Loss", "of the update", "loss", [Series("loss")], log=False),
    Panel("Gradient norm", "before clipping", "norm", [Series("grad_norm")], low=0),
    Panel("Learning rate", "of the update", "learning rate", [Series("lr")], low=0, log=False),
)

GROUPS = (
    Panel(
        "Groups without reward variance",
        "they give no gradient",
        "share of groups",
        [Series("zero_variance_share")],
        low=0,
        log=False,
    ),
    Panel(
        "Truncated and failed responses",
        "truncated: cut at the maximum length; failed: could not be scored",
        "share of responses",
        [
            Series("truncated_share", "truncated", hue=0),
            Series("failed_share", "failed", "dashed", hue=1),
        ],
        low=0,
        log=False,
    ),
    Panel(
        "Padding",
        "of the optimizer's micro-batches",
        "share of tokens",
        [Series("padding_share")],
        low=0,
        log=False,
    ),
)


def page(runs: Sequence[RunData], every: int | None = None) -> str:
    """Return the report as HTML. A browser loads it again `every` so many seconds."""
    names = ", ".join(run.name for run in runs)
    return document(f"{names} · mugrpo report", _sections(runs), every)


def _sections(runs: Sequence[RunData]) -> list[Markup | None]:
    alone = len(runs) == 1
    title = runs[0].name if alone else f"{len(runs)} runs compared"
    notes = [note if alone else f"{run.name}: {note}" for run in runs for note in run.notes]
    others = [update_figure(runs, panel) for panel in (*OPTIMIZATION, *GROUPS)]
    budget = _TOKENS_SHOWN // len(runs)
    foot = "Drawn from the run's files alone. β is the behavior policy, π the policy."
    return [
        part("header", "mugrpo report", title),
        part("notes", notes),
        tiles(runs[0]) if alone else None,
        part("section", "Accuracy", part("grid", accuracy_figures(runs), "grid pair")),
        *(part("section", title, part("grid", list(figures))) for title, figures in _added(runs)),
        part(
            "section",
            "Results and options",
            results_table(runs),
            config_table(runs),
            *map(full_config, runs),
        ),
        part("section", "By stage", part("grid", list(stage_figures(runs)))),
        part("section", "Policy and behavior policy", part("grid", _policy(runs))),
        part("section", "Optimization", part("grid", others)),
        part(
            "section",
            "Sampled rollouts, token by token",
            *_each(runs, lambda run: sampled_rollouts(run.samples, budget)),
        ),
        part(
            "section",
            "Held-out problems",
            *_each(runs, lambda run: evaluated_groups(run.evaluated)),
        ),
        part("paragraph", foot, "muted"),
    ]


def _added(runs: Sequence[RunData]) -> Iterator[tuple[str, Sequence[Markup | None]]]:
    """Yield title and figures of the sections that extensions add."""
    for place in (place for one in installed().values() for place in one.sections):
        yield imported(place)(runs)


def _policy(runs: Sequence[RunData]) -> list[Markup | None]:
    """Return figures in rows of three: ratios by staleness come below those by update."""
    ratios = [ratio_panel(sign) for sign in ("positive", "negative")]
    others = [update_figure(runs, panel) for panel in (*fraction_panels(runs), *POLICY)]
    return [
        reward_figure(runs),
        *(update_figure(runs, panel) for panel in ratios),
        *others[:1],
        *(staleness_figure(runs, panel) for panel in ratios),
        *others[1:],
    ]


def _each(runs: Sequence[RunData], draw: Callable[[RunData], Markup | None]) -> list[Markup]:
    """Return what `draw` returns for each run, under the run's name if there are several."""
    several, found = len(runs) > 1, list[Markup]()
    for index, run in enumerate(runs):
        if content := draw(run):
            name = part("heading", run_name(runs, index))
            found += [name, content] if several else [content]
    return found


def ratio_panel(sign: str) -> Panel:
    """Return the panel of importance ratios for "positive" or "negative" advantages."""
    name = f"ratio/{sign}"
    return Panel(
        f"Importance ratio, {sign} advantage",
        "policy over behavior policy, per token; shaded: p01 to p99",
        "ratio",
        [
            Series(f"{name}/max", "max", "dotted thin"),
            Series(f"{name}/p99", "p99", "thin"),
            Series(f"{name}/mean", "mean", "dashed"),
            Series(f"{name}/p50", "p50", "thick"),
        ],
        log=True,
        band=(f"{name}/p01", f"{name}/p99"),
    )


def fraction_panels(runs: Sequence[RunData]) -> list[Panel]:
    """Return the fractions that objectives logged: one panel if there is one run, else one each."""
    keys = list(dict.fromkeys(key for run in runs for key in run.keys("update", "", "_fraction")))
    words = {key: key.removesuffix("_fraction").replace("_", " ") for key in keys}
    note = "share of the update's response tokens"
    if len(runs) == 1:
        series = [Series(key, words[key], hue=hue) for hue, key in enumerate(keys)]
        return [Panel("What the objective left out", note, "share", series, low=0)] if keys else []
    return [
        Panel(f"Tokens {words[key]}", note, "share", [Series(key)], low=0, log=False)
        for key in keys
    ]


def tiles(run: RunData) -> Markup:
    """Return the run's result in four numbers."""
    before, after = accuracy_ends(run)
    held_out = number(run.evaluations[-1], "problems") if run.evaluations else None
    last = f"update {run.evaluations[-1]['update']:,}" if run.evaluations else ""
    of = f", {held_out:,.0f} held-out problems" if held_out else ""
    share, _, around = (before if after == MISSING else after).partition(" (")
    measured = "before and after" if after != MISSING else "after"
    interval = f"; 95 % interval ({around}" if around else ""
    of_grpo = -(-run.made // GRPO_UPDATES_PER_REFRESH)
    planned = run.planned_updates
    return part(
        "tiles",
        [
            (
                "accuracy",
                f"{before.partition(' (')[0]} → {share}" if after != MISSING else share,
                f"{measured} {last}{of}{interval}" if run.evaluations else "no evaluation yet",
            ),
            (
                "training time",
                duration(training_seconds(run)),
                f"and {duration(phase_seconds(spans(run))['evaluate'])} of evaluation",
            ),
            (
                "refreshes",
                f"{run.refreshed:,}",
                None
                if run.options.get("preset") == "grpo"
                else f"GRPO with μ = {GRPO_UPDATES_PER_REFRESH} would have made {of_grpo:,}",
            ),
            ("updates", f"{run.made:,}", f"of {planned:,} planned" if planned else None),
        ],
    )


def results_table(runs: Sequence[RunData]) -> Markup:
    """Return a table of results with a column per run."""
    rows: list[tuple[str, Callable[[RunData], str]]] = [
        ("accuracy before", lambda run: accuracy_ends(run)[0]),
        ("accuracy after", lambda run: accuracy_ends(run)[1]),
        ("updates made", lambda run: f"{run.made:,}"),
        ("updates planned", lambda run: _whole(run.planned_updates)),
        ("updates skipped", lambda run: _whole(_total(run.updates, "skipped") or 0)),
        ("refreshes made", lambda run: f"{run.refreshed:,}"),
        (f"refreshes of {_GRPO}", lambda run: f"{-(-run.made // GRPO_UPDATES_PER_REFRESH):,}"),
        ("rollouts", lambda run: _whole(_total(run.refreshes, "rollouts"))),
        ("response tokens", lambda run: _whole(_total(run.refreshes, "tokens"))),
        ("training time", lambda run: duration(training_seconds(run))),
        *((f"  {phase}", lambda run, phase=phase: _phase(run, phase)) for phase in PHASES),
        (
            f"training time at the refreshes of {_GRPO} (arithmetic, not a run)",
            lambda run: duration(cost.training_seconds) if (cost := grpo_cost(run)) else MISSING,
        ),
    ]
    return _table(runs, [(name, [cell(run) for run in runs], False) for name, cell in rows])


def config_table(runs: Sequence[RunData]) -> Markup:
    """Return a table of the main options, of all that differ between runs, and of versions."""
    names = [name for name in _ESSENTIAL if any(name in run.options for run in runs)]
    every = dict.fromkeys(name for run in runs for name in run.options)
    names += [name for name in every if name not in names and _differs(runs, name)]
    rows = [
        (name, [_option(run.options, name) for run in runs], _differs(runs, name)) for name in names
    ]
    rows += [
        (name, [_option(run.provenance, name) for run in runs], False)
        for name in _VERSIONS
        if any(run.provenance.get(name) is not None for run in runs)
    ]
    return _table(runs, rows)


def full_config(run: RunData) -> Markup:
    """Return every option and the run's provenance, collapsed."""
    everything = {"config": run.config, "provenance": run.provenance}
    text, note = cut(json.dumps(everything, indent=2, ensure_ascii=False), 20_000)
    rest = part("paragraph", note, "muted") if note else None
    return part("fold", f"config.json of {run.name}", part("preformatted", text), rest)


def accuracy_ends(run: RunData) -> tuple[str, str]:
    """Return the accuracy of the first and of the last evaluation, as text with intervals."""
    if not run.evaluations:
        return MISSING, MISSING
    first, last = (accuracy_text(run.evaluations[i]) for i in (0, -1))
    return first, (last if len(run.evaluations) > 1 else MISSING)


def run_name(runs: Sequence[RunData], index: int) -> Markup:
    """Return a run's name, after a swatch of its color if there are several runs."""
    return part("run_name", runs[index].name, run_hue(index) if len(runs) > 1 else None)


def _table(runs: Sequence[RunData], rows: Sequence[tuple[str, Sequence[str], bool]]) -> Markup:
    return part("by_run", [run_name(runs, index) for index in range(len(runs))], rows)


def _option(options: dict[str, Any], name: str) -> str:
    if name not in options:
        return MISSING
    value = options[name]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    kept, note = cut(text, _LONGEST_OPTION)
    return f"{kept} … ({note})" if note else kept


def _differs(runs: Sequence[RunData], name: str) -> bool:
    return any(run.options.get(name) != runs[0].options.get(name) for run in runs)


def _total(lines: Sequence[Any], key: str) -> float | None:
    known = [value for value in column(lines, key) if value is not None]
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
