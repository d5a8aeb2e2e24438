"""Compare two measurements problem by problem: on each benchmark, and over all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.rollouts.intervals import Difference, holm, paired, pooled
from mugrpo.rollouts.measures import avg_at
from mugrpo.run.trust import is_run

Result = Mapping[str, Any]  # the content of a result.json

# What must be the same for two results to be compared, with the words for it.
_SAME = {"samples": "responses per problem", "temperature": "the temperature", "top_p": "top-p"}


@dataclass(frozen=True)
class Measurement:
    """The results of one model or checkpoint, by suite."""

    name: str  # as the command line names it
    results: dict[str, Result]


@dataclass(frozen=True)
class Comparison:
    """A benchmark's avg@k in both measurements, and the difference second - first."""

    title: str
    first: float
    second: float
    difference: Difference
    holm: float | None  # p-value adjusted for all benchmarks; None for a pooled row


@dataclass(frozen=True)
class Comparisons:
    """The benchmarks that two measurements share, the pooled rows, and notes for readers."""

    first: str
    second: str
    benchmarks: Sequence[Comparison]
    overall: Sequence[Comparison]
    notes: Sequence[str]


def stored(name: str, suites: Sequence[str] | None = None) -> Measurement:
    """Return the stored results that `name` names: a run, RUN@UPDATE, or a folder of results.

    Without an update, each suite's newest counts. `suites` limits them. Raises UsageError if there
    are none, or if one cannot be read.
    """
    place, _, at = name.rpartition("@") if "@" in name else (name, "", "")
    if at and not at.isdigit():
        raise UsageError(f"{name}: after @ comes the number of updates, as in {place}@64")
    root = Path(place)
    root = root / "benchmarks" if is_run(root) else root
    results = {}
    for folder in sorted(path for path in root.glob("*") if path.is_dir()):
        files = sorted(folder.glob(f"update-{int(at):06d}/result.json" if at else "*/result.json"))
        if files and (suites is None or folder.name in suites):
            results[folder.name] = read_result(files[-1])
    if not results:
        raise UsageError(
            f"{name} has no results{' of these suites' if suites else ''} in {root}; "
            "`mugrpo benchmark TARGET --suite A,B,...` makes them"
        )
    return Measurement(name, results)


def read_result(file: Path) -> Result:
    """Return the content of a result.json. Raises UsageError if it cannot be read."""
    try:
        result: Result = json.loads(file.read_text())
        assert result["per_problem"] and result["measures"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, AssertionError) as error:
        raise UsageError(
            f"{file} cannot be read ({error}); remove it, and `mugrpo benchmark` makes it again "
            "from the stored responses"
        ) from None
    return result


def compare(first: Measurement, second: Measurement) -> Comparisons:
    """Compare two measurements, paired by problem, on the benchmarks that both have.

    A problem that only one of them has is left out. Raises UsageError if they share no benchmark
    or problem, or if one was sampled in another way.
    """
    shared = [name for name in first.results if name in second.results]
    if not shared:
        raise UsageError(
            f"{first.name} has {', '.join(first.results)} and {second.name} has "
            f"{', '.join(second.results)}: nothing to compare; measure both on the same suites"
        )
    pairs, notes = [], []
    for suite in shared:
        a, b = first.results[suite], second.results[suite]
        _require_same(suite, first, second)
        ours, theirs = _shares(a), _shares(b)
        ids = [id_ for id_ in ours if id_ in theirs]
        if not ids:
            raise UsageError(f"{suite}: the two measurements share no problem; use the same --data")
        if left := len(ours) + len(theirs) - 2 * len(ids):
            notes.append(f"{suite}: {left} problems are in one of the two only, and are left out.")
        pairs.append(([theirs[id_] for id_ in ids], [ours[id_] for id_ in ids]))
    differences = [paired(*pair) for pair in pairs]
    adjusted = holm([one.p_value for one in differences])
    rows = [
        _comparison(first.results[suite]["title"], *pair, difference, p)
        for suite, pair, difference, p in zip(shared, pairs, differences, adjusted, strict=True)
    ]
    seconds, firsts = ([value for pair in pairs for value in pair[side]] for side in (0, 1))
    by_problem, by_benchmark = pooled(pairs)
    overall = [
        _comparison("all problems, each the same", seconds, firsts, by_problem),
        Comparison(
            "all benchmarks, each the same",
            sum(row.first for row in rows) / len(rows),
            sum(row.second for row in rows) / len(rows),
            by_benchmark,
            None,
        ),
    ]
    return Comparisons(first.name, second.name, rows, overall if len(rows) > 1 else [], notes)


def _comparison(
    title: str,
    second_P: Sequence[float],
    first_P: Sequence[float],
    difference: Difference,
    holm: float | None = None,
) -> Comparison:
    known = [(a, b) for a, b in zip(first_P, second_P, strict=True) if a == a and b == b]
    first, second = (sum(values) / len(known) for values in zip(*known, strict=True))
    return Comparison(title, first, second, difference, holm)


def _shares(result: Result) -> dict[str, float]:
    """Return problem -> share of right responses, NaN if none has a verdict."""
    problems = result["per_problem"]
    counts = ([problem[name] for problem in problems] for name in ("right", "judged"))
    ids = (str(problem["id"]) for problem in problems)
    return dict(zip(ids, map(float, avg_at(*counts)), strict=True))


def _require_same(suite: str, first: Measurement, second: Measurement) -> None:
    for name, words in _SAME.items():
        a, b = first.results[suite].get(name), second.results[suite].get(name)
        if a != b:
            raise UsageError(
                f"{suite}: {words} differs, {a} in {first.name} and {b} in {second.name}; measure "
                f"both with --{name.replace('_', '-')} {a}"
            )
