"""Results and comparisons as text and as Markdown. No number is without its interval."""

from __future__ import annotations

from collections.abc import Sequence

from mugrpo.extensions.evals.comparing import Comparison, Comparisons, Result
from mugrpo.report.readable import MISSING, TIMES, plain, visible

HEAD = (
    *("benchmark", "update", f"problems {TIMES} samples", "avg@k", "pass@k", "maj@k"),
    *("truncated", "no answer", "tokens", "graders agree"),
)

# What would end a cell or begin HTML, a link or an image.
_SAFE = str.maketrans(
    {"\\": "\\\\", "|": "\\|", "[": "\\[", "<": "&lt;", "&": "&amp;", "\n": "↵", "\t": " "}
)


def table(results: Sequence[Result]) -> str:
    """Return a row per result: its measures with their 95 % intervals."""
    return markdown(HEAD, [row(result) for result in results])


def row(result: Result) -> list[str]:
    """Return the cells of a result under HEAD. Measures that the result lacks are MISSING."""
    k, measures = result["samples"], result["measures"]
    agree = result.get("agreement")
    return [
        result["title"],
        str(result["update"]),
        f"{result['problems']} {TIMES} {k}",
        with_interval(measures.get(f"avg@{k}")),
        with_interval(measures.get(f"pass@{k}")) if k > 1 else MISSING,
        with_interval(measures.get(f"maj@{k}")) if k > 1 else MISSING,
        with_interval(measures.get("truncated")),
        with_interval(measures.get("no_answer")),
        with_interval(measures.get("mean_length")),
        with_interval(agree["share"] if agree else None),
    ]


def with_interval(measure: Sequence[float] | None) -> str:
    """Return a measure, (value, low, high), as text: shares to three decimals."""
    if measure is None:
        return MISSING
    value, low, high = measure
    if value > 1:  # a mean of tokens
        return f"{plain(value)} ({plain(low)} to {plain(high)})"
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def comparison_table(compared: Comparisons) -> str:
    """Return a row per benchmark and the pooled rows, with the number of comparisons below."""
    table = markdown(comparison_head(compared), comparison_rows(compared))
    return "\n\n".join([table, comparison_note(compared), *compared.notes])


def comparison_head(compared: Comparisons) -> list[str]:
    """Return the head of the table of a comparison."""
    first, second = compared.first, compared.second
    return ["benchmark", "problems", first, second, "difference", "p", "p (Holm)"]


def comparison_rows(compared: Comparisons) -> list[list[str]]:
    """Return the cells of each benchmark and of the pooled rows, under `comparison_head`."""
    return [_compared(one) for one in (*compared.benchmarks, *compared.overall)]


def comparison_note(compared: Comparisons) -> str:
    """Return how many comparisons there are, and what their numbers mean."""
    number = len(compared.benchmarks)
    pooled = " The pooled rows are not among them." if compared.overall else ""
    return (
        f"{number} comparison{'s' if number != 1 else ''}, paired by problem. Averages are avg@k "
        "over the problems compared, differences are "
        f"{compared.second} minus {compared.first}, all with 95 % intervals. Holm's p-values hold "
        f"for all comparisons together.{pooled}"
    )


def _compared(one: Comparison) -> list[str]:
    difference = one.difference
    return [
        one.title,
        str(difference.problems),
        with_interval(one.first),
        with_interval(one.second),
        f"{difference.value:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})",
        _p(difference.p_value),
        _p(one.holm),
    ]


def _p(p: float | None) -> str:
    if p is None:
        return MISSING
    return "below 0.001" if p < 0.001 else f"{p:.3f}"


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, whose columns line up in plain text too.

    Titles and names come from files, so their characters are text in it: none ends a cell, is
    HTML, or moves a terminal's cursor.
    """
    cells = [[visible(text).translate(_SAFE) for text in row] for row in (head, *body)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [" | ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)) for row in cells]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)
