"""Compare two measurements problem by problem: on each benchmark, and over all of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.publishing import read_checked
from mugrpo.extensions.evals.measures import Difference, over_benchmarks, paired
from mugrpo.rollouts.evaluation import Floats, avg_at, interval
from mugrpo.rollouts.student import holm

Result = Mapping[str, Any]  # the content of a result.json
Estimate = tuple[float, float, float]  # a mean over problems, and the ends of its 95 % interval

# What must be the same for two results to be compared, with the words for it.
_SAME = {"samples": "responses per problem", "temperature": "the temperature", "top_p": "top-p"}


@dataclass(frozen=True)
class Measurement:
    """The results of one model or checkpoint, by suite."""

    name: str  # as the command line names it
    results: dict[str, Result]


@dataclass(frozen=True)
class Comparison:
    """The avg@k of both measurements over the problems compared, and second minus first.

    For the mean over benchmarks, only the difference has an interval, so the others are None.
    """

    title: str
    first: Estimate | None
    second: Estimate | None
    difference: Difference
    holm: float | None  # p-value adjusted for all benchmarks; None for their mean


@dataclass(frozen=True)
class Comparisons:
    """The benchmarks that two measurements share, then their mean if they are several."""

    first: str
    second: str
    rows: Sequence[Comparison]
    notes: Sequence[str]  # for readers


@dataclass(frozen=True)
class _Pair:
    """The shares of right responses to P problems in both measurements, [P]."""

    title: str
    first: Floats
    second: Floats
    samples: int  # responses per problem


def stored(name: str, suites: Sequence[str] | None = None) -> Measurement:
    """Return the stored results that `name` names: a run, RUN@UPDATE, or a folder of results.

    Without an update, each suite's newest counts. `suites` limits them. Raises UsageError if there
    are none, or if one cannot be read.
    """
    path, at, end = name.rpartition("@")
    update = int(end) if at and end.isdecimal() else None  # digits after the last @
    root = Path(name if update is None else path)
    root = root / "benchmarks" if is_run(root) else root
    pattern = "*/result.json" if update is None else f"update-{update:06d}/result.json"
    results = {}
    for folder in sorted(path for path in root.glob("*") if path.is_dir()):
        files = sorted(folder.glob(pattern))
        if files and (suites is None or folder.name in suites):
            results[folder.name] = read_result(files[-1])
    if not results:
        raise UsageError(
            f"{name} has no results{' of these suites' if suites else ''} in {root}; "
            "`mugrpo benchmark TARGET --suite A,B,...` makes them"
        )
    return Measurement(name, results)


def is_run(folder: Path) -> bool:
    """Return whether `folder` is a run's directory. A model's has a config.json too."""
    try:
        return "provenance" in json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False


def read_result(file: Path) -> Result:
    """Return the content of a result.json. Raises UsageError if it is damaged."""
    try:
        return read_checked(file)
    except RunStopped:
        raise UsageError(
            f"{file} is damaged; remove it, and `mugrpo benchmark` makes it again from the stored "
            "responses"
        ) from None


def compare(first: Measurement, second: Measurement) -> Comparisons:
    """Compare two measurements, paired by problem, on the benchmarks that both have.

    A problem that only one of them has, or that has no verdict in one, is left out. Raises
    UsageError if they share no benchmark or problem, or if one was sampled in another way.
    """
    shared = [suite for suite in first.results if suite in second.results]
    if not shared:
        raise UsageError(
            f"{first.name} has {', '.join(first.results)} and {second.name} has "
            f"{', '.join(second.results)}: nothing to compare; measure both on the same suites"
        )
    notes: list[str] = []
    pairs = []
    for suite in shared:
        _require_same(suite, first, second)
        a, b = (of.results[suite].get("max_new_tokens") for of in (first, second))
        if a != b:  # models' contexts can differ, so it is no error
            notes.append(
                f"{suite}: a response has at most {a} tokens in {first.name}, {b} in {second.name}."
            )
        pairs.append(_pair(suite, first.results[suite], second.results[suite], notes))
    differences = [paired(pair.second, pair.first) for pair in pairs]
    adjusted = holm([difference.p_value for difference in differences])
    rows = list(map(_comparison, pairs, differences, adjusted))
    if len(pairs) > 1:
        mean = over_benchmarks([(pair.second, pair.first) for pair in pairs])
        rows.append(Comparison("mean over benchmarks", None, None, mean, None))
    return Comparisons(first.name, second.name, rows, notes)


def _pair(suite: str, first: Result, second: Result, notes: list[str]) -> _Pair:
    """Return the problems that both judge; note what is left out. Raises UsageError for none."""
    of_first, of_second = _shares(first), _shares(second)
    ids = [id_ for id_ in of_first if id_ in of_second]
    if not ids:
        raise UsageError(f"{suite}: the two measurements share no problem; use the same --data")
    if left := len(of_first) + len(of_second) - 2 * len(ids):
        notes.append(f"{suite}: problems that only one of the two has, left out: {left}.")
    first_P, second_P = (np.array([shares[id_] for id_ in ids]) for shares in (of_first, of_second))
    judged = ~np.isnan(first_P + second_P)
    if not judged.any():
        raise UsageError(
            f"{suite}: no problem has a verdict in both measurements; remove the folders scores/"
        )
    if left := len(ids) - int(judged.sum()):
        notes.append(f"{suite}: problems without a verdict in one of the two, left out: {left}.")
    return _Pair(first["title"], first_P[judged], second_P[judged], first["samples"])


def _comparison(pair: _Pair, difference: Difference, holm: float | None) -> Comparison:
    def estimate(values_P: Floats) -> Estimate:
        low, high = interval(values_P, pair.samples)
        return float(values_P.mean()), float(low), float(high)

    first, second = map(estimate, (pair.first, pair.second))
    return Comparison(pair.title, first, second, difference, holm)


def _shares(result: Result) -> dict[str, float]:
    """Return problem -> share of right responses, NaN if none has a verdict."""
    problems = result["per_problem"]
    right_P, judged_P = ([problem[name] for problem in problems] for name in ("right", "judged"))
    ids = (str(problem["id"]) for problem in problems)
    return dict(zip(ids, map(float, avg_at(right_P, judged_P)), strict=True))


def _require_same(suite: str, first: Measurement, second: Measurement) -> None:
    for name, words in _SAME.items():
        a, b = first.results[suite].get(name), second.results[suite].get(name)
        if a != b:
            raise UsageError(
                f"{suite}: {words} differs, {a} in {first.name} and {b} in {second.name}; measure "
                f"both with --{name.replace('_', '-')} {a}"
            )
