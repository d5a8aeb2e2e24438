"""The results of benchmark suites as a page of their own, and as a table for a model card."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import altair as alt
from markupsafe import Markup

from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_file, publish_json
from mugrpo.extensions.evals.comparing import Comparisons, Result, damaged, read_result
from mugrpo.extensions.evals.tables import (
    HEAD,
    comparison_head,
    comparison_note,
    comparison_rows,
    row,
    table,
    with_interval,
)
from mugrpo.report.charts import (
    Axis,
    Picture,
    Trace,
    color,
    inline,
    line_chart,
    words,
    x_channel,
)
from mugrpo.report.figures import banded, document, drawn, part

_SETTINGS = (
    *("model", "data", "subset", "split", "revision", "engine", "precision", "samples"),
    *("temperature", "top_p", "max_new_tokens", "seed", "mugrpo", "ended"),
)
_PASS_AT = re.compile(r"pass@(\d+)")
_KICKER = "mugrpo benchmark"


def write_page(folder: Path) -> Path:
    """Write what is measured in `folder`: report.html and table.md.

    Results of earlier calls are included. Return the page's path. Raises UsageError if a result
    cannot be read.
    """
    results = []
    for file in sorted(folder.glob("*/update-*/result.json")):
        result = read_result(file)
        try:
            _ = row(result), _graders(result)
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(file, f"{type(error).__name__}: {error}") from None
        results.append(result)
    _publish(folder / "table.md", f"{table(results)}\n")
    page = document(f"{folder} · mugrpo benchmark", _sections(folder, results))
    _publish(folder / "report.html", page)
    return folder / "report.html"


def write_comparison(compared: Comparisons, page: Path) -> Path:
    """Write a comparison as a page, and as JSON beside it. Return the page's path.

    Raises UsageError if the name of `page` does not end in .html.
    """
    if page.suffix != ".html":
        raise UsageError(
            f"--out {page}: name the page of the comparison, a file that ends in .html"
        )
    title = f"{compared.first} and {compared.second}"
    head, body = comparison_head(compared), comparison_rows(compared)
    content = [
        part("header", _KICKER, title),
        part("notes", compared.notes),
        part(
            "section",
            "Comparison",
            part("paragraph", comparison_note(compared)),
            part("table", head, body),
        ),
        part("section", "Differences", _differences(compared)),
    ]
    publish_json(
        page.with_suffix(".json"), {"comparisons": len(compared.benchmarks), **asdict(compared)}
    )
    _publish(page, document(f"{title} · mugrpo benchmark", content))
    return page


def _publish(file: Path, text: str) -> None:
    with publish_file(file) as out:
        out.write(text.encode())


def _differences(compared: Comparisons) -> Markup | None:
    """Return a figure with a row per difference: a point on its interval."""
    every = [*compared.benchmarks, *compared.overall]
    rows = [
        {
            "name": f"{place}. {words(one.title)}",
            "x": one.difference.value,
            "low": one.difference.low,
            "high": one.difference.high,
        }
        for place, one in enumerate(every, 1)
    ]
    axis = Axis(f"difference of avg@k, {words(compared.second)} minus {words(compared.first)}")
    base = alt.Chart(inline(rows)).encode(y=alt.Y("name:N", sort=None, title=None))
    zero = alt.Chart(inline([{"x": 0}]), name="zero")
    zero = zero.mark_rule(color=color("axis"), strokeDash=[2, 3]).encode(x_channel(axis))
    intervals = base.properties(name="intervals").mark_rule(color=color("run-0"), strokeWidth=2.2)
    intervals = intervals.encode(x_channel(axis, "low"), x2="high:Q")
    points = base.properties(name="points").mark_circle(color=color("run-0"), size=60, opacity=1)
    points = points.encode(x_channel(axis))
    picture = Picture([zero, intervals, points], width=640, height=32 * len(rows))
    return drawn("Differences", "points; lines: 95 % intervals", picture)


def _sections(folder: Path, results: Sequence[Result]) -> list[Markup | None]:
    by_suite = [list(some) for _, some in groupby(results, key=lambda result: result["suite"])]
    intervals = (
        "Every number has its 95 % interval: the range for the mean over similar problems with "
        "fresh responses."
    )
    return [
        part("header", _KICKER, str(folder)),
        part("section", "Results", part("paragraph", intervals), *_tables(results)),
        part("section", "Over updates", _curves(by_suite)),
        part("section", "Right at least once in k responses", *_passes(by_suite)),
        part("section", "Two graders", *(_graders(result) for result in results)),
        part("section", "How it was measured", *(_setting(some[-1]) for some in by_suite)),
    ]


def _tables(results: Sequence[Result]) -> list[Markup]:
    return [
        part("table", HEAD, [row(result) for result in results]),
        *(
            part(
                "fold",
                f"All measures of {result['title']} after update {result['update']}",
                part(
                    "table",
                    ["measure", "value (95 % interval)"],
                    [[name, with_interval(m)] for name, m in result["measures"].items()],
                ),
            )
            for result in results
        ),
    ]


def _curves(by_suite: Sequence[Sequence[Result]]) -> Markup | None:
    """Return avg@k of each suite over updates, if one was measured after several."""
    traces = list[Trace]()
    for hue, results in enumerate(by_suite):
        named = [(result, result["measures"].get(f"avg@{result['samples']}")) for result in results]
        known = [(float(result["update"]), *measure) for result, measure in named if measure]
        if len(known) > 1:
            label = words(results[0]["title"])
            traces += banded(*zip(*known, strict=True), label=label, series="avg@k", hue=hue)
    picture = line_chart(Axis("updates"), Axis("avg@k", low=0), traces, ends=True)
    return drawn("avg@k against updates", "shaded: 95 % intervals", picture)


def _passes(by_suite: Sequence[Sequence[Result]]) -> Iterator[Markup | None]:
    """Yield pass@k over k for each suite with several samples, a line for each update."""
    for results in by_suite:
        traces = list[Trace]()
        for hue, result in enumerate(results):
            named = [(_PASS_AT.fullmatch(name), m) for name, m in result["measures"].items()]
            known = [(float(match[1]), *measure) for match, measure in named if match]
            if len(known) > 1:
                label = f"update {result['update']}"
                traces += banded(*zip(*known, strict=True), label=label, series="pass@k", hue=hue)
        axis = Axis("k", log=True, ticks=sorted({k for trace in traces for k in trace.xs}))
        picture = line_chart(axis, Axis("pass@k", low=0), traces, ends=True)
        yield drawn(results[0]["title"], "pass@k; shaded: 95 % intervals", picture)


def _graders(result: Result) -> Markup | None:
    """Return how the two graders agree on a result, and the responses on which they do not."""
    found = result.get("agreement")
    if not found or found["share"] is None:
        return None
    judged = sum(found[name] for name in ("both_right", "only_first", "only_second", "both_wrong"))
    first, second = found["first"], found["second"]
    sentence = (
        f"{result['title']}, update {result['update']}: {first} and {second} agree on "
        f"{with_interval(found['share'])} of {judged} responses; {found['only_first']} are right "
        f"for {first} alone, {found['only_second']} for {second} alone."
    )
    listed = [
        [
            one["response"],
            one["reference"],
            first if one["first_right"] else second,
            _reading(one["first_answer"]),
            _reading(one["second_answer"]),
        ]
        for one in found["disagreements"]
    ]
    head = ["response", "reference", "right for", f"{first} reads", f"{second} reads"]
    several = part("fold", "Disagreements", part("table", head, listed)) if listed else None
    return part("all", part("paragraph", sentence), several)


def _reading(answer: str | None) -> str:
    return "no answer" if answer is None else answer


def _setting(result: Result) -> Markup:
    rows = [[name, str(result[name])] for name in _SETTINGS if result.get(name) is not None]
    settings = part("table", ["option", "value"], rows)
    sources = result.get("conventions", {})
    table = part("table", ["option", "source"], list(sources.items()))
    why = part("fold", "Where the suite's conventions come from", table) if sources else None
    return part("all", part("heading", result["title"]), settings, why)
