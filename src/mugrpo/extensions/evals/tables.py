"""Results and comparisons as text and as Markdown. No number is without its interval."""

from collections.abc import Sequence
from pathlib import Path

from mugrpo.disk.publishing import publish_file
from mugrpo.extensions.evals.comparing import Comparison, Comparisons, Result, read_result
from mugrpo.report.readable import MISSING, TIMES, markdown, plain

HEAD = (
    *("benchmark", "update", f"problems {TIMES} samples", "avg@k", "pass@k"),
    *("truncated", "no answer", "tokens"),
)


def table(results: Sequence[Result]) -> str:
    """Return a row per result: its measures with their 95 % intervals."""
    return markdown(HEAD, [row(result) for result in results])


def row(result: Result) -> list[str]:
    """Return the cells of a result under HEAD. Measures that the result lacks are MISSING."""
    k, measures = result["samples"], result["measures"]
    return [
        result["title"],
        str(result["update"]),
        f"{result['problems']} {TIMES} {k}",
        with_interval(measures.get(f"avg@{k}")),
        with_interval(measures.get(f"pass@{k}")) if k > 1 else MISSING,
        with_interval(measures.get("truncated")),
        with_interval(measures.get("no_answer")),
        with_interval(measures.get("mean_length")),
    ]


def with_interval(measure: Sequence[float] | None) -> str:
    """Return a measure, (value, low, high), as text: shares to three decimals."""
    if measure is None:
        return MISSING
    value, low, high = measure
    if value > 1:  # a mean of tokens
        return f"{plain(value)} ({plain(low)} to {plain(high)})"
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def write_table(folder: Path) -> Path:
    """Write table.md: all results in `folder`, earlier ones too. Return its path.

    Raises UsageError if a result cannot be read.
    """
    files = sorted(folder.glob("*/update-*/result.json"))
    with publish_file(folder / "table.md") as out:
        out.write(f"{table([read_result(file) for file in files])}\n".encode())
    return folder / "table.md"


def comparison_table(compared: Comparisons) -> str:
    """Return a row per benchmark and the pooled rows, with the number of comparisons below."""
    first, second = compared.first, compared.second
    head = ["benchmark", "problems", first, second, "difference", "p", "p (Holm)"]
    rows = [_compared(one) for one in compared.rows]
    number = sum(one.first is not None for one in compared.rows)
    pooled = " The mean over benchmarks is not among them." if number > 1 else ""
    note = (
        f"{number} comparison{'s' if number != 1 else ''}, paired by problem. Averages are avg@k "
        f"over the problems compared, differences are {second} minus {first}, all with 95 % "
        f"intervals. Holm's p-values hold for all comparisons together.{pooled}"
    )
    return "\n\n".join([markdown(head, rows), note, *compared.notes])


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
