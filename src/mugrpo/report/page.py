"""The page: sections in reading order, one style sheet, one script, and no network requests."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, stdev
from typing import Any

from markupsafe import Markup

from mugrpo.config.base import imported, installed
from mugrpo.disk.metrics import PHASES, UPDATE, number
from mugrpo.report.charts import Axis, hue
from mugrpo.report.figures import (
    Panel,
    document,
    drawn,
    first_figures,
    headline_figures,
    lines_of,
    part,
    stage_figures,
    stage_steps,
    update_chart,
    update_figure,
)
from mugrpo.report.read import (
    RunData,
    column,
    phase_seconds,
    refresh_parts,
    training_seconds,
)
from mugrpo.report.readable import MISSING, cut, duration
from mugrpo.report.samples import evaluated_groups, sampled_rollouts
from mugrpo.rollouts.evaluation import value_text
from mugrpo.rollouts.student import quantile

_LONGEST_OPTION = 300  # characters shown of an option's value
_ESSENTIAL = (
    *("model.path", "task.name", "preset", "advantage.name", "objective.name"),
    *("objective.ratio_clip", "veto.name", "veto.threshold", "reference.name", "reduction"),
    *("optimizer.lr", "optimizer.lr_schedule", "schedule.stages", "schedule.batches_per_stage"),
    *("schedule.growth", "schedule.passes_per_batch", "schedule.problems_per_update"),
    *("schedule.group_size", "rollouts.temperature", "rollouts.max_new_tokens", "seed"),
)
_VERSIONS = ("mugrpo", "torch", "transformers", "numpy")

_RATIOS = tuple(
    Panel(
        f"Importance ratio, {sign} advantage",
        "policy over behavior policy, per token; shaded: p01 to p99",
        "ratio",
        {f"ratio/{sign}/{name}": name for name in ("p50", "mean", "p99", "max")},
        log=True,
        band=(f"ratio/{sign}/p01", f"ratio/{sign}/p99"),
    )
    for sign in ("positive", "negative")
)
_POLICY = (
    Panel(
        "KL from the behavior policy",
        "KL(β‖π), estimated on β's samples",
        "nats per token",
        {"kl_behavior": "KL"},
        log=True,
    ),
    Panel(
        "Total variation",
        "from the behavior policy, estimated on its samples; whole responses saturate at 1",
        "total variation",
        {"tv_token": "tokens", "tv_sequence": "responses"},
    ),
)
_OPTIMIZATION = (
    Panel("Loss", "of the update", "loss", {"loss": "loss"}),
    Panel("Gradient norm", "before clipping", "norm", {"grad_norm": "norm"}, log=True),
    Panel("Learning rate", "of the update", "learning rate", {"lr": "rate"}),
    Panel(
        "Groups without reward variance",
        "they give no gradient",
        "share of groups",
        {"zero_variance_share": "share"},
    ),
    Panel(
        "Truncated and failed responses",
        "truncated: cut at the maximum length; failed: could not be scored",
        "share of responses",
        {"truncated_share": "truncated", "failed_share": "failed"},
    ),
)


def page(runs: Sequence[RunData], every: int | None = None) -> str:
    """Return the report as HTML. A browser reloads it every `every` seconds."""
    names = ", ".join(run.name for run in runs)
    return document(f"{names} · mugrpo report", _sections(runs), every)


def _sections(runs: Sequence[RunData]) -> list[Markup | None]:
    alone = len(runs) == 1
    told = [(run.name, note) for run in runs for note in (*run.faults, *run.notes)]
    notes = [note if alone else f"{name}: {note}" for name, note in told]
    others = [update_figure(runs, panel) for panel in _OPTIMIZATION]
    places = (place for one in installed().values() for place in one.sections)
    added = (imported(place)(runs) for place in places)
    configs = map(full_config, runs)
    sampled = _each(runs, lambda run: sampled_rollouts(run.samples, len(runs)))
    evaluated = _each(runs, lambda run: evaluated_groups(run.evaluated))
    foot = "Drawn from the run's files alone. β is the behavior policy, π the policy."
    return [
        part("header", "mugrpo report", runs[0].name if alone else f"{len(runs)} runs compared"),
        part("notes", notes),
        tiles(runs[0]) if alone else differences(runs),
        *(part("preformatted", "\n".join(run.working)) for run in runs if run.working),
        part(
            "section",
            "Did it learn, and what did it cost?",
            part("grid", headline_figures(runs), "grid pair"),
            part("grid", list(first_figures(runs))),
        ),
        *(part("section", title, part("grid", figures)) for title, figures in added),
        part("section", "Results", results_table(runs)),
        part("section", "By stage", part("grid", list(stage_figures(runs)))),
        part("section", "Policy and behavior policy", part("grid", list(_policy(runs)))),
        part("section", "Optimization", part("grid", others)),
        part("section", "Sampled rollouts, token by token", *sampled),
        part("section", "Held-out problems", *evaluated),
        part("section", "Options", config_table(runs), *configs),
        part("paragraph", foot, "muted"),
    ]


def _policy(runs: Sequence[RunData]) -> Iterator[Markup | None]:
    """Yield the behavior policy's reward, the ratios, and what objectives left out."""
    reward = lines_of(runs, stage_steps, {"behavior_reward": "reward"})
    note = "of each stage's rollouts; constant within a stage, like the behavior policy"
    yield drawn("Behavior reward", note, update_chart(runs, Axis("mean reward"), reward))
    keys = list(dict.fromkeys(key for run in runs for key in run.keys("update", "", "_fraction")))
    left_out = Panel(
        "What the objective left out",
        "share of the update's response tokens",
        "share",
        {key: key.removesuffix("_fraction").replace("_", " ")[:40] for key in keys},
    )
    for panel in (*_RATIOS, left_out, *_POLICY):
        yield update_figure(runs, panel)


def _each(runs: Sequence[RunData], draw: Callable[[RunData], Markup | None]) -> list[Markup]:
    """Return what `draw` returns for each run, under the run's name if there are several."""
    several, found = len(runs) > 1, list[Markup]()
    for index, run in enumerate(runs):
        if content := draw(run):
            name = part("heading", run_name(runs, index))
            found += [name, content] if several else [content]
    return found


def tiles(run: RunData) -> Markup:
    """Return the run's result in four numbers."""
    before, after = ends(run, run.headline)
    last = run.evaluations[-1] if run.evaluations else {}
    shown, _, around = (before if after == MISSING else after).partition(" (")
    measured = "no evaluation yet"
    if last:
        measured = f"{'before and ' * (after != MISSING)}after update {last['update']:,}"
        if held_out := number(last, "problems"):
            measured += f", {held_out:,.0f} held-out problems"
        measured += f"; 95 % interval ({around}" if around else ""
    made, planned = run.count(UPDATE), run.planned_updates
    change = f"{before.partition(' (')[0]} → {shown}" if after != MISSING else shown
    evaluating = f"and {duration(phase_seconds(run)['evaluate'])} of evaluation"
    return part(
        "tiles",
        [
            (run.headline, change, measured),
            ("training time", duration(training_seconds(run)), evaluating),
            ("refreshes", f"{run.count('refresh'):,}", None),
            ("updates", f"{made:,}", f"of {planned:,} planned"),
        ],
    )


def differences(runs: Sequence[RunData]) -> Markup | None:
    """Return what the second run gains over the first, over the problems that both have judged."""
    both = runs[0].shares.keys() & runs[1].shares.keys() if len(runs) == 2 else ()
    if not both:
        return None
    gained = [runs[1].shares[problem] - runs[0].shares[problem] for problem in sorted(both)]
    mean, half = fmean(gained), 0.0
    if len(gained) > 1:
        half = float(quantile(0.975, len(gained) - 1)) * stdev(gained) / math.sqrt(len(gained))
    around = f" (95 % interval {mean - half:+.3f} to {mean + half:+.3f})"
    times = [training_seconds(run) for run in runs]
    faster = f"; {times[1] / times[0]:.2f} times its seconds of training" if times[0] else ""
    sentence = (
        f"{runs[1].name} ends {mean:+.3f} in accuracy from {runs[0].name}{around}, over the same "
        f"{len(gained):,} problems{faster}. The interval says nothing about other seeds."
    )
    return part("paragraph", sentence, "lead")


def results_table(runs: Sequence[RunData]) -> Markup:
    """Return a table of results with a column per run."""
    rows: list[tuple[str, Callable[[RunData], str]]] = [
        *(
            (f"{name} {when}", lambda run, name=name, index=index: ends(run, name)[index])
            for name in sorted({run.headline for run in runs})
            for index, when in enumerate(("before", "after"))
        ),
        ("updates made", lambda run: f"{run.count(UPDATE):,}"),
        ("updates planned", lambda run: f"{run.planned_updates:,}"),
        ("updates skipped", lambda run: _total(run.updates, "skipped")),
        ("refreshes made", lambda run: f"{run.count('refresh'):,}"),
        ("rollouts", lambda run: _total(run.refreshes, "rollouts")),
        ("response tokens", lambda run: _total(run.refreshes, "tokens")),
        ("training time, evaluation apart", lambda run: duration(training_seconds(run))),
        *((f"  {phase}", lambda run, phase=phase: _phase(run, phase)) for phase in PHASES),
    ]
    return _table(runs, [(name, [cell(run) for run in runs], False) for name, cell in rows])


def config_table(runs: Sequence[RunData]) -> Markup:
    """Return a table of the main options, of all that differ between runs, and of versions.

    What differs comes first.
    """
    names = [name for name in _ESSENTIAL if any(name in run.options for run in runs)]
    every = dict.fromkeys(name for run in runs for name in run.options)
    names += [name for name in every if name not in names and _differs(runs, name)]
    rows = [
        (name, [_option(run.options, name) for run in runs], _differs(runs, name)) for name in names
    ]
    rows.sort(key=lambda row: not row[2])
    versions = [name for name in _VERSIONS if any(run.provenance.get(name) for run in runs)]
    rows += [(name, [_option(run.provenance, name) for run in runs], False) for name in versions]
    return _table(runs, rows)


def full_config(run: RunData) -> Markup:
    """Return every option and the run's provenance, collapsed."""
    everything = {"config": run.config, "provenance": run.provenance}
    text, note = cut(json.dumps(everything, indent=2, ensure_ascii=False), 20_000)
    rest = part("paragraph", note, "muted") if note else None
    return part("fold", f"config.json of {run.name}", part("preformatted", text), rest)


def ends(run: RunData, name: str) -> tuple[str, str]:
    """Return accuracy or reward of the first and last evaluation, as text with intervals."""
    if not run.evaluations:
        return MISSING, MISSING
    first, last = (value_text(run.evaluations[i], name) for i in (0, -1))
    return first, (last if len(run.evaluations) > 1 else MISSING)


def run_name(runs: Sequence[RunData], index: int) -> Markup:
    """Return a run's name, after a swatch of its color if there are several runs."""
    return part("run_name", runs[index].name, hue(index) if len(runs) > 1 else None)


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


def _total(lines: Sequence[Any], key: str) -> str:
    return f"{sum(filter(None, column(lines, key))):,.0f}"


def _phase(run: RunData, phase: str) -> str:
    """Return the total time of a phase, as text."""
    text = duration(phase_seconds(run)[phase])
    parts = refresh_parts(run.refreshes) if phase == "refresh" else {}
    if len(parts) > 1:
        text += f" ({', '.join(f'{name} {duration(s)}' for name, s in parts.items())})"
    return text
