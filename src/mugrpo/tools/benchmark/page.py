"""The results of benchmark suites as a page of their own, and as a table for a model card."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from mugrpo.config.suites import Suite
from mugrpo.disk.publishing import publish_file, publish_json
from mugrpo.report.axes import Axis
from mugrpo.report.charts import Trace, line_chart
from mugrpo.report.figures import drawn, run_hue
from mugrpo.report.markup import Content, Markup, fold, tag
from mugrpo.report.page import document
from mugrpo.tools.benchmark.comparing import Result, read_result
from mugrpo.tools.benchmark.every_eval_ever import record
from mugrpo.tools.benchmark.tables import HEAD, row, table, with_interval

_SETTINGS = (
    *("model", "data", "subset", "split", "revision", "engine", "precision", "samples"),
    *("temperature", "top_p", "max_new_tokens", "seed", "mugrpo", "ended"),
)
_PASS_AT = re.compile(r"pass@(\d+)")


def write_page(folder: Path, suites: Sequence[Suite]) -> Path:
    """Write what is measured in `folder`: report.html, table.md and a record for each result.

    Results of earlier calls are included. Return the page's path.
    """
    results = list(_stored(folder))
    for file, result in results:
        publish_json(file.with_name("every_eval_ever.json"), record(result))
    known = [result for _, result in results]
    with publish_file(folder / "table.md") as out:
        out.write(f"{table(known)}\n".encode())
    with publish_file(folder / "report.html") as out:
        out.write(
            document(f"{folder} · mugrpo benchmark", _sections(folder, known, suites)).encode()
        )
    return folder / "report.html"


def _stored(folder: Path) -> Iterator[tuple[Path, Result]]:
    for file in sorted(folder.glob("*/update-*/result.json")):
        yield file, read_result(file)


def _sections(
    folder: Path, results: Sequence[Result], suites: Sequence[Suite]
) -> list[Markup | None]:
    by_suite = [list(some) for _, some in groupby(results, key=lambda result: result["suite"])]
    kicker = tag("p", "mugrpo benchmark", class_="kicker")
    intervals = (
        "Every number has its 95 % interval, over problems and samples: how far the mean over more "
        "such problems, each answered anew, may be."
    )
    return [
        tag("header", kicker, tag("h1", str(folder))),
        _section("Results", tag("p", intervals), *_tables(results)),
        _section("Over updates", _curves(by_suite)),
        _section("Right at least once in k responses", *_passes(by_suite)),
        _section("Two graders", *(_graders(result) for result in results)),
        _section("How it was measured", *(_setting(some[-1], suites) for some in by_suite)),
    ]


def _section(title: str, *content: Content) -> Markup | None:
    return tag("section", tag("h2", title), *content) if any(content) else None


def _tables(results: Sequence[Result]) -> list[Markup]:
    return [
        _table(HEAD, [row(result) for result in results]),
        *(
            fold(
                f"All measures of {result['title']} after update {result['update']}",
                _table(
                    ["measure", "value (95 % interval)"],
                    [[name, with_interval(m)] for name, m in result["measures"].items()],
                ),
            )
            for result in results
        ),
    ]


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> Markup:
    rows = [tag("tr", *(tag("th", text, scope="col") for text in head))]
    rows += [tag("tr", *(tag("td", text) for text in cells)) for cells in body]
    return tag("div", tag("table", *rows), class_="scroll")


def _curves(by_suite: Sequence[Sequence[Result]]) -> Markup | None:
    """Return avg@k of each suite over updates, if one was measured after several."""
    traces = []
    for hue, results in enumerate(by_suite):
        if len(results) > 1:
            measures = [result["measures"][f"avg@{result['samples']}"] for result in results]
            xs = [float(result["update"]) for result in results]
            traces += _banded(xs, measures, results[0]["title"], hue)
    picture = line_chart(Axis("updates"), Axis("avg@k", low=0, high=1), traces, ends=True)
    return drawn("avg@k against updates", "shaded: 95 % intervals", picture)


def _passes(by_suite: Sequence[Sequence[Result]]) -> Iterator[Markup | None]:
    """Yield pass@k over k for each suite with several samples, a line for each update."""
    for results in by_suite:
        traces = []
        for hue, result in enumerate(results):
            named = [(_PASS_AT.fullmatch(name), m) for name, m in result["measures"].items()]
            found = [(float(match[1]), measure) for match, measure in named if match]
            if len(found) > 1:
                ks, measures = zip(*found, strict=True)
                traces += _banded(ks, measures, f"update {result['update']}", hue)
        picture = line_chart(Axis("k", log=True), Axis("pass@k", low=0, high=1), traces, ends=True)
        yield drawn(results[0]["title"], "pass@k; shaded: 95 % intervals", picture)


def _banded(
    xs: Sequence[float], measures: Sequence[Sequence[float]], label: str, hue: int
) -> list[Trace]:
    ys, lows, highs = (list(column) for column in zip(*measures, strict=True))
    line = Trace(xs, ys, series=label, color=run_hue(hue), style="thick")
    band = Trace(xs, lows, series=label, color=run_hue(hue), style="band", uppers=highs)
    return [band, line]


def _graders(result: Result) -> Markup | None:
    """Return how the two graders agree on a result, and the responses on which they do not."""
    found = result["agreement"]
    if not found or found["share"] is None:
        return None
    judged = sum(found[name] for name in ("both_right", "only_first", "only_second", "both_wrong"))
    first, second = found["first"], found["second"]
    words = (
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
    table = fold(f"{len(listed)} disagreements", _table(head, listed)) if listed else None
    return tag("div", tag("p", words), table)


def _reading(answer: str | None) -> str:
    return "no answer" if answer is None else answer


def _setting(result: Result, suites: Sequence[Suite]) -> Markup:
    rows = [[name, str(result[name])] for name in _SETTINGS if result.get(name) is not None]
    sources = {s.name: s.options.conventions for s in suites}.get(result["suite"], {})
    table = _table(["option", "source"], list(sources.items()))
    why = fold("Where the suite's conventions come from", table) if sources else None
    return tag("div", tag("h3", result["title"]), _table(["option", "value"], rows), why)
