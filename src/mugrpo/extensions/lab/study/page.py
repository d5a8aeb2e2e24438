"""A study's table with intervals, and its page: question, setting, result, pictures, findings."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from mugrpo.disk.publishing import publish_file
from mugrpo.extensions.lab.study.figures import draw, named
from mugrpo.extensions.lab.study.intervals import (
    difference_p,
    equivalence,
    estimate,
    geometric,
)
from mugrpo.extensions.lab.study.outcome import BY_PROBLEM, Row, quantity, rows_of
from mugrpo.extensions.lab.study.spec import Study, arms
from mugrpo.report.charts import svg_file
from mugrpo.report.readable import MINUS, duration, plain
from mugrpo.rollouts.student import holm

RESULTS = "cells.parquet"
PAGE = "README.md"

_SPANS_DECADES = "ratio/negative/max"
_SHARES = ("accuracy", "best", "mean", "worst_fall", "greedy", "entropy", "ratio/negative/mean")


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
    """Return a table for each baseline that compares the other arms with it, on the same seeds.

    An arm's baseline has the values of one of `study.baseline`, and the arm's own on the other
    axes. Times and ratios are compared by their quotient (with an interval of its logarithm),
    everything else by its difference. An interval over problems, of each one's mean over the seeds,
    says nothing about other seeds. The last column has the p-value of a paired t test that the
    accuracies do not differ. With `study.equivalence`, another one has that of two one-sided tests
    that they differ by less than it. Both are adjusted by Holm's rule for all tests of their kind
    in these tables.
    """
    pairs = [
        (baseline, arm, of)
        for baseline in study.baseline
        for arm in arms(study)
        if arm != {**arm, **baseline} and (of := _paired(rows, arm, {**arm, **baseline}))
    ]
    gained = [
        [_minus(quantity(a, "accuracy"), quantity(b, "accuracy")) for a, b in of]
        for *_, of in pairs
    ]
    tests = {"equal accuracy, p": [difference_p(one) for one in gained]}
    by_problem = any(row.get(BY_PROBLEM) for row in rows)
    if (margin := study.equivalence) is not None:
        within = [equivalence(one, margin) for one in gained]
        tests[f"accuracy within ±{plain(margin)}, p"] = within
    p_values = zip(*map(holm, tests.values()), strict=True)
    extra = ["accuracy, interval over problems"] * by_problem
    head = [*study.axes, "pairs", *map(named, study.columns), *extra, *tests]
    tables: dict[str, list[list[str]]] = {}
    for (baseline, arm, of), adjusted in zip(pairs, p_values, strict=True):
        differences = (_difference(column, of) for column in study.columns)
        over = [_over_problems(of)] * by_problem
        row = [*arm.values(), f"{len(of)}", *differences, *over, *map(_p, adjusted)]
        tables.setdefault(", ".join(baseline.values()), []).append(row)
    return "\n\n".join(
        f"Against {name}, seed by seed:\n\n{_markdown(head, body)}" for name, body in tables.items()
    )


def _paired(
    rows: Sequence[Row], arm: dict[str, str], against: dict[str, str]
) -> list[tuple[Row, Row]]:
    """Return the rows of both arms, of every seed that both have."""
    ours, theirs = ({row["seed"]: row for row in rows_of(rows, one)} for one in (arm, against))
    return [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]


def write_page(study: Study, file: Path, rows: Sequence[Row], cells: int) -> Path:
    """Write the page and the figures into the folder of the results. Return the page's path."""
    folder = folder_of(file)
    images = []
    for figure in study.figures:
        if (chart := draw(study, figure, rows)) is None:
            continue
        with publish_file(folder / f"{figure.name}.svg") as out:
            out.write(svg_file(chart).encode())
        images.append(f"![{figure.title}]({figure.name}.svg)")
    spent = sum(row["training_seconds"] + row["seconds/evaluate"] for row in rows)
    parts = [
        f"# {study.title}",
        study.question.strip(),
        "## Setting",
        study.setting.strip(),
        f"{len(rows)} of {cells} runs, seeds {', '.join(map(str, study.seeds))}, "
        f"threads of each: {study.threads}; all runs together took {duration(spent)}, evaluations "
        f"included. Made by `mugrpo study run {file}`; every row of [{RESULTS}]({RESULTS}) holds "
        "its whole config. "
        "Intervals are 95 %, by Student's t distribution over seeds.",
        "## Result",
        table(study, rows),
        *images,
    ]
    parts += [compared(study, rows)] if study.baseline else []
    parts += ["## Findings", study.findings.strip()] if study.findings else []
    with publish_file(folder / PAGE) as out:
        out.write(("\n\n".join(part for part in parts if part) + "\n").encode())
    return folder / PAGE


def _mean(column: str, values: Sequence[float | None]) -> str:
    """Return a table cell: the mean of `values` with its interval, or "" without values."""
    if column == _SPANS_DECADES:
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
    if column == _SPANS_DECADES or "seconds" in column:
        ratios = [a / b if a is not None and b else None for a, b in both]
        text = _geometric_mean(ratios)
        return f"x {text}" if text else ""
    text = _mean(column, [_minus(a, b) for a, b in both])
    return text if not text or text[0] in ("-", MINUS) else f"+{text}"


def _over_problems(pairs: Sequence[tuple[Row, Row]]) -> str:
    """Return the difference of accuracies with its interval over problems, of these very seeds."""
    each = [
        [_minus(a, b) for a, b in zip(ours[BY_PROBLEM], theirs[BY_PROBLEM], strict=True)]
        for ours, theirs in pairs
        if ours.get(BY_PROBLEM) and theirs.get(BY_PROBLEM)
    ]
    of_problems = [
        fmean(known)
        for one in zip(*each, strict=True)
        if (known := [x for x in one if x is not None and not math.isnan(x)])
    ]
    text = _mean("accuracy", of_problems)
    return text if not text or text[0] in ("-", MINUS) else f"+{text}"


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "below 0.001" if value < 0.001 else f"{value:.3f}"


def _number(column: str, value: float) -> str:
    name = column.removeprefix("start/")
    return f"{value:.3f}" if name in _SHARES or name.startswith("pass@") else plain(value)


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]  # unpadded, so that a changed number is one cell
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
