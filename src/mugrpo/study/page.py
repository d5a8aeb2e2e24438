"""A study's table with intervals, and its page: question, setting, result, findings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from mugrpo.publishing import publish_file
from mugrpo.report.scale import duration, plain
from mugrpo.study import figures
from mugrpo.study.figures import named
from mugrpo.study.intervals import Estimate, estimate
from mugrpo.study.outcome import Row, quantity, rows_of
from mugrpo.study.spec import Study, arms

RESULTS = "cells.parquet"
PAGE = "README.md"

_SHARES = ("accuracy", "best", "mean", "worst_fall")


def folder_of(file: Path) -> Path:
    """Where the results of a study's file lie."""
    return file.parent / "results" / file.stem


def table(study: Study, rows: Sequence[Row]) -> str:
    """A row an arm: its finished cells, and mean ± half width of the 95 % interval of each column.

    Where not every cell has a number (a level that was not reached), how many have.
    """
    head = [*study.axes, "runs", *map(named, study.columns)]
    body = []
    for arm in arms(study):
        chosen = rows_of(rows, arm)
        found = (estimate([quantity(r, c) for r in chosen]) for c in study.columns)
        cells = (
            _estimated(column, one, len(chosen))
            for column, one in zip(study.columns, found, strict=True)
        )
        body.append([*arm.values(), f"{len(chosen)}", *cells])
    return _markdown(head, body)


def compared(study: Study, rows: Sequence[Row]) -> str:
    """Every other arm against that of the baseline, on the same seeds and the same other axes.

    A time is told as a ratio (an interval of its logarithm), everything else as a difference.
    """
    head = [*study.axes, "pairs", *map(named, study.columns)]
    body = []
    for arm in arms(study):
        against = {**arm, **study.baseline}
        if arm == against:
            continue
        ours = {row["seed"]: row for row in rows_of(rows, arm)}
        theirs = {row["seed"]: row for row in rows_of(rows, against)}
        seeds = sorted(ours.keys() & theirs.keys())
        pairs = [(ours[seed], theirs[seed]) for seed in seeds]
        cells = (_difference(column, pairs) for column in study.columns)
        body.append([*arm.values(), f"{len(pairs)}", *cells])
    return _markdown(head, body)


def write_page(study: Study, file: Path, rows: Sequence[Row], cells: int) -> Path:
    """Write the page and the figures into the folder of the results; returns the page's file."""
    folder = folder_of(file)
    drawn = []
    for figure in study.figures:
        draw = figures.curves if figure.kind == "curves" else figures.values
        with publish_file(folder / f"{figure.name}.svg") as out:
            out.write(draw(study, figure, rows).encode())
        drawn.append(f"![{figure.title}]({figure.name}.svg)")
    spent = sum(row["training_seconds"] + row["seconds/evaluate"] for row in rows)
    parts = [
        f"# {study.title}",
        study.question.strip(),
        "## Setting",
        study.setting.strip(),
        f"{len(rows)} of {cells} runs, seeds {', '.join(map(str, study.seeds))}, one thread each; "
        f"all runs together took {duration(spent)}, evaluations included. Made by "
        f"`mugrpo study run {file}`; every row of [{RESULTS}]({RESULTS}) holds its whole config. "
        "Intervals are 95 %, by Student's t distribution over seeds.",
        "## Result",
        table(study, rows),
        *drawn,
    ]
    if study.baseline:
        name = ", ".join(study.baseline.values())
        parts += [f"Against {name}, seed by seed:", compared(study, rows)]
    parts += ["## Findings", study.findings.strip()] if study.findings else []
    with publish_file(folder / PAGE) as out:
        out.write(("\n\n".join(part for part in parts if part) + "\n").encode())
    return folder / PAGE


def _estimated(column: str, found: Estimate | None, runs: int) -> str:
    if found is None:
        return ""
    text = _number(column, found.mean)
    if found.half_width is not None:
        text += f" ± {_number(column, found.half_width)}"
    return text if found.count == runs else f"{text} ({found.count} of {runs})"


def _difference(column: str, pairs: Sequence[tuple[Row, Row]]) -> str:
    known = list(_both(column, pairs))
    if not _is_time(column):
        found = estimate([a - b for a, b in known])
        sign = "+" if found and found.mean > 0 else ""
        return sign + _estimated(column, found, len(pairs))
    found = estimate([math.log(a / b) for a, b in known])
    if found is None:
        return ""
    half = found.half_width or 0.0
    ends = (plain(math.exp(found.mean + sign * half)) for sign in (-1, 1))
    text = f"x {plain(math.exp(found.mean))} ({' to '.join(ends)})"
    return text if found.count == len(pairs) else f"{text} ({found.count} of {len(pairs)})"


def _both(column: str, pairs: Sequence[tuple[Row, Row]]) -> Iterator[tuple[float, float]]:
    for ours, theirs in pairs:
        a, b = quantity(ours, column), quantity(theirs, column)
        if a is not None and b is not None:
            yield a, b


def _is_time(column: str) -> bool:
    return "seconds" in column


def _number(column: str, value: float) -> str:
    return f"{value:.3f}" if column in _SHARES else plain(value)


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
