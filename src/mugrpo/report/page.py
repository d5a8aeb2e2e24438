"""The page: sections in reading order, one style sheet, one script, and no network requests."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Sequence

from mugrpo.config.base import imported
from mugrpo.config.extensions import installed
from mugrpo.report import breakdown, headline, success
from mugrpo.report.embed import script, sheet
from mugrpo.report.figures import (
    accuracy_figures,
    reward_figure,
    staleness_figure,
    update_figure,
)
from mugrpo.report.groups import evaluated_groups
from mugrpo.report.logged import logged_figures
from mugrpo.report.markup import Content, Markup, fold, join, section, tag
from mugrpo.report.panels import BOUND, GROUPS, OPTIMIZATION, POLICY, fraction_panels, ratio_panel
from mugrpo.report.read import RunData
from mugrpo.report.sources import source_figures
from mugrpo.report.tokens import sampled_rollouts

_TOKENS_SHOWN = 9000  # of sampled rollouts in a whole page: about 100 bytes each

Figures = Sequence[Markup | None]


def page(runs: Sequence[RunData], every: int | None = None) -> str:
    """Return the report as HTML. A browser loads it again `every` so many seconds."""
    names = ", ".join(run.name for run in runs)
    return document(f"{names} · mugrpo report", _sections(runs), every)


def document(title: str, content: Sequence[Content], every: int | None = None) -> str:
    """Return a whole page. Its security policy allows only its own script and style.

    A browser loads it again `every` so many seconds.
    """
    style = sheet("colors.css") + sheet("style.css")
    policy = (
        f"default-src 'none'; script-src '{_digest(script())}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", http_equiv="refresh", content=str(every)) if every else None,
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = tag("body", tag("main", *content), tag("script", Markup(script())))
    return "<!doctype html>\n" + tag("html", head, "\n", body, lang="en") + "\n"


def _digest(source: str) -> str:
    """Return a source's hash as a security policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def _sections(runs: Sequence[RunData]) -> list[Markup | None]:
    alone = len(runs) == 1
    title = runs[0].name if alone else f"{len(runs)} runs compared"
    totals = breakdown.totals_figure(runs)
    return [
        tag("header", tag("p", "mugrpo report", class_="kicker"), tag("h1", title)),
        _notes(runs),
        headline.tiles(runs[0]) if alone else None,
        section("Accuracy", _grid(accuracy_figures(runs), "grid pair")),
        *(section(title, _grid(list(figures))) for title, figures in _added(runs)),
        section("Results and options", _tables(runs)),
        section("Rewards", _grid(logged_figures(runs))),
        section("Sources and difficulty", _grid(source_figures(runs))),
        section(
            "Where the time went",
            None if alone else totals,
            *_each(runs, _time),
            totals if alone else None,
            breakdown.grpo_limits(runs),
        ),
        section("Policy and behavior policy", _grid(_policy(runs))),
        section("The policy-improvement bound", _bound(runs)),
        section(
            "Optimization",
            _grid([update_figure(runs, panel) for panel in (*OPTIMIZATION, *GROUPS)]),
        ),
        section("Rollouts", *_each(runs, _rollouts)),
        section("Sampled rollouts, token by token", *_each(runs, lambda r: _samples(r, runs))),
        section("Held-out problems", *_each(runs, lambda r: evaluated_groups(r.evaluated))),
        tag("footer", "Drawn from the run's files alone. β is the behavior policy, π the policy."),
    ]


def _bound(runs: Sequence[RunData]) -> Markup | None:
    pictures = _grid([update_figure(runs, panel) for panel in BOUND])
    return (
        fold("Its terms, two forms of it, and the variance weight", pictures) if pictures else None
    )


def _policy(runs: Sequence[RunData]) -> Figures:
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


def _added(runs: Sequence[RunData]) -> Iterator[tuple[str, Figures]]:
    """Yield title and figures of the sections that extensions add."""
    for place in (place for one in installed().values() for place in one.sections):
        yield imported(place)(runs)


def _tables(runs: Sequence[RunData]) -> Markup:
    return join(
        [
            tag(
                "div",
                tag("div", tag("h3", "Results"), headline.results_table(runs)),
                tag("div", tag("h3", "Options"), headline.config_table(runs)),
                class_="grid pair" if len(runs) == 1 else "stack",
            ),
            *(headline.full_config(run) for run in runs),
        ]
    )


def _time(run: RunData) -> Markup | None:
    timeline = breakdown.timeline_figure(run)
    return join([timeline, breakdown.grpo_words(run)]) if timeline else None


def _rollouts(run: RunData) -> Markup | None:
    parts = [
        _grid([*breakdown.status_figures(run), success.variance_weight_figure(run)], "grid pair"),
        breakdown.length_figures(run),
    ]
    return join(parts) if any(parts) else None


def _samples(run: RunData, runs: Sequence[RunData]) -> Markup | None:
    return sampled_rollouts(run.samples, _TOKENS_SHOWN // len(runs))


def _each(runs: Sequence[RunData], draw: Callable[[RunData], Markup | None]) -> list[Markup | None]:
    """Return what `draw` returns for each run, under the run's name if there are several."""
    contents = [(index, draw(run)) for index, run in enumerate(runs)]
    return [
        join([tag("h3", headline.run_name(runs, index)) if len(runs) > 1 else None, content])
        for index, content in contents
        if content
    ]


def _grid(figures: Figures, css: str = "grid") -> Markup | None:
    present = [figure for figure in figures if figure]
    return tag("div", *present, class_=css) if present else None


def _notes(runs: Sequence[RunData]) -> Markup | None:
    notes = [
        tag("li", f"{run.name}: " if len(runs) > 1 else None, note)
        for run in runs
        for note in run.notes
    ]
    return tag("ul", *notes, class_="notes") if notes else None
