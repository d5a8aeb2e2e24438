"""A study's table with intervals, and its page: question, setting, result, findings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mugrpo.disk.publishing import publish_file
from mugrpo.extensions.lab.study.figures import draw, named
from mugrpo.extensions.lab.study.intervals import equivalence, estimate, geometric, rank_correlation
from mugrpo.extensions.lab.study.outcome import Row, quantity, rows_of
from mugrpo.extensions.lab.study.spec import Study, arms
from mugrpo.report.charts import svg_file
from mugrpo.report.readable import MINUS, duration, plain

RESULTS = "cells.parquet"
PAGE = "README.md"

_SHARES = ("accuracy", "best", "mean", "worst_fall", "greedy", "entropy")


def folder_of(file: Path) -> Path:
    """Return the folder of the results of a study's file."""
    return file.parent / "results" / file.stem


def table(study: Study, rows: Sequence[Row]) -> str:
    """Return a table with a row per arm: its finished cells, and the mean of each column.

    A mean is followed by ± the half width of its 95 % interval. A column of ratios, whose values
    span decades, has the geometric mean and the ends of an interval of the logarithm. If some cells
    have no number (because they did not reach a level), the count of those that have one is added.
    """
    head = [*study.axes, "runs", *map(named, study.columns)]
    body = []
    for arm in arms(study):
        arm_rows = rows_of(rows, arm)
        cells = (
            _mean(column, [quantity(row, column) for row in arm_rows]) for column in study.columns
        )
        body.append([*arm.values(), f"{len(arm_rows)}", *cells])
    return _markdown(head, body)


def compared(study: Study, rows: Sequence[Row]) -> str:
    """Return a table that compares every other arm with its baseline, on the same seeds.

    An arm's baseline has the values of `study.baseline`, and the arm's own on the other axes. Times
    and ratios are compared by their quotient (with an interval of its logarithm), everything else
    by its difference. With `study.equivalence`, the last column has the p-value of two one-sided
    tests that the accuracies differ by less than it.
    """
    margin = study.equivalence
    tested = [] if margin is None else [f"accuracy within ±{plain(margin)}, p"]
    head = [*study.axes, "pairs", *map(named, study.columns), *tested]
    body = []
    for arm in arms(study):
        against = {**arm, **study.baseline}
        if arm == against:
            continue
        ours = {row["seed"]: row for row in rows_of(rows, arm)}
        theirs = {row["seed"]: row for row in rows_of(rows, against)}
        seeds = sorted(ours.keys() & theirs.keys())
        pairs = [(ours[seed], theirs[seed]) for seed in seeds]
        cells = [_difference(column, pairs) for column in study.columns]
        if margin is not None:
            cells.append(_equivalence(pairs, margin))
        body.append([*arm.values(), f"{len(pairs)}", *cells])
    return _markdown(head, body)


def write_page(study: Study, file: Path, rows: Sequence[Row], cells: int) -> Path:
    """Write the page and the figures into the folder of the results. Return the page's path."""
    folder = folder_of(file)
    images = []
    for figure in study.figures:
        with publish_file(folder / f"{figure.name}.svg") as out:
            out.write(svg_file(draw(study, figure, rows)).encode())
        images.append(f"![{figure.title}]({figure.name}.svg)")
    spent = sum(row["training_seconds"] + row["seconds/evaluate"] for row in rows)
    parts = [
        f"# {study.title}",
        study.question.strip(),
        "## Setting",
        study.setting.strip(),
        f"{len(rows)} of {cells} runs, seeds {', '.join(map(str, study.seeds))}, "
        f"{_threads(study)} each; all runs together took {duration(spent)}, evaluations "
        f"included. Made by `mugrpo study run {file}`; every row of [{RESULTS}]({RESULTS}) holds "
        "its whole config. "
        "Intervals are 95 %, by Student's t distribution over seeds.",
        "## Result",
        table(study, rows),
        *images,
        *(_correlation(pair, rows) for pair in study.correlate),
    ]
    if study.baseline:
        name = ", ".join(study.baseline.values())
        parts += [f"Against {name}, seed by seed:", compared(study, rows)]
    parts += ["## Findings", study.findings.strip()] if study.findings else []
    with publish_file(folder / PAGE) as out:
        out.write(("\n\n".join(part for part in parts if part) + "\n").encode())
    return folder / PAGE


def _threads(study: Study) -> str:
    return "one thread" if study.threads == 1 else f"{study.threads} threads"


def _mean(column: str, values: Sequence[float | None]) -> str:
    """Return a table cell: the mean of `values` with its interval, or "" without values."""
    if _spans_decades(column):
        return _geometric_mean(values)
    mean = estimate(values)
    if mean is None:
        return ""
    text = _number(column, mean.mean)
    if mean.half_width is not None:
        text += f" ± {_number(column, mean.half_width)}"
    return text + _of(mean.count, len(values))


def _geometric_mean(values: Sequence[float | None]) -> str:
    mean = geometric(values)
    if mean is None:
        return ""
    middle, low, high, count = mean
    interval = f" ({plain(low)} to {plain(high)})" if count > 1 else ""
    return f"{plain(middle)}{interval}{_of(count, len(values))}"


def _of(count: int, all_: int) -> str:
    return "" if count == all_ else f" ({count} of {all_})"


def _difference(column: str, pairs: Sequence[tuple[Row, Row]]) -> str:
    both = [(quantity(ours, column), quantity(theirs, column)) for ours, theirs in pairs]
    if _spans_decades(column) or "seconds" in column:
        ratios = [a / b if a is not None and b else None for a, b in both]
        text = _geometric_mean(ratios)
        return f"x {text}" if text else ""
    text = _mean(column, [None if a is None or b is None else a - b for a, b in both])
    return text if not text or text[0] in ("-", MINUS) else f"+{text}"


def _equivalence(pairs: Sequence[tuple[Row, Row]], margin: float) -> str:
    both = [(quantity(ours, "accuracy"), quantity(theirs, "accuracy")) for ours, theirs in pairs]
    p = equivalence([None if a is None or b is None else a - b for a, b in both], margin)
    if p is None:
        return ""
    return "below 0.001" if p < 0.001 else f"{p:.3f}"


def _correlation(columns: tuple[str, str], rows: Sequence[Row]) -> str:
    """Return a sentence on the rank correlation of two columns over all cells."""
    first, second = columns
    found = rank_correlation([(quantity(row, first), quantity(row, second)) for row in rows])
    if found is None:
        return ""
    return (
        f"Spearman's rank correlation of {named(first)} with {named(second)} over {found.count} "
        f"runs: {found.mean:.2f} ± {found.half_width:.2f}."
    )


def _spans_decades(column: str) -> bool:
    return column.startswith("ratio/")


def _number(column: str, value: float) -> str:
    return f"{value:.3f}" if column in _SHARES or column.startswith("pass@") else plain(value)


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
