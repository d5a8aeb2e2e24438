"""Which cases of a test run by default, and tables of cases that are one test."""

import functools
import inspect
import itertools
import reprlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mugrpo.disk.errors import UsageError


def some(number: int, cases: Iterable[Any]) -> list[Any]:
    """Return `cases`. All but the first `number` of them run in `make test-all` only. Use it for
    cases that show the same in other places, if each takes a second or more."""
    cases = list(cases)
    values = [case if isinstance(case, tuple) else (case,) for case in cases[number:]]
    return cases[:number] + [pytest.param(*value, marks=pytest.mark.long) for value in values]


def table(
    names: str | Iterable[str], cases: Iterable[Any], first: int | None = None
) -> Callable[[Any], Any]:
    """Run a test with each of `cases` as one item, where `parametrize` would make many.

    A failure names its case. Each has a `tmp_path` and a `monkeypatch` of its own; the cases share
    all other fixtures, so none may leave anything in them. If `first` is given, only that many of
    the cases run by default, and all of them in `make test-all`.
    """
    names = names.replace(",", " ").split() if isinstance(names, str) else [*names]
    rows = [dict(zip(names, case if len(names) > 1 else (case,), strict=True)) for case in cases]
    if first is None:
        return lambda test: _over(test, names, rows=rows)
    return _few_or_all(names, rows[:first], rows)


def cross(**values: Iterable[Any]) -> Callable[[Any], Any]:
    """Run a test with all combinations of `values` in `make test-all`; by default with a few. The
    few are as many as the longest of `values` has, and have each value at least once."""
    every = {name: [*each] for name, each in values.items()}
    turns = (itertools.cycle(each) for each in every.values())
    few = itertools.islice(zip(*turns, strict=False), max(map(len, every.values())))
    few, rows = (
        [dict(zip(every, row, strict=True)) for row in rows]
        for rows in (few, itertools.product(*every.values()))
    )
    return _few_or_all([*every], few, rows)


def _few_or_all(
    names: list[str], few: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> Callable[[Any], Any]:
    forms = [pytest.param(few, id="few"), pytest.param(rows, id="all", marks=pytest.mark.long)]
    return lambda test: pytest.mark.parametrize("rows", forms)(_over(test, names))


def _over(test: Any, names: list[str], **given: list[dict[str, Any]]) -> Any:
    """Return a test that calls `test` for each of the `rows` that are given or a parameter."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        for number, row in enumerate(given.get("rows") or fixtures.pop("rows")):
            with _own(fixtures, f"case-{number}") as own:
                try:
                    test(**own, **row)
                except BaseException as failure:
                    failure.add_note(f"with {reprlib.repr(row)}")
                    raise

    asked = inspect.signature(test).parameters.values()
    kept = [parameter for parameter in asked if parameter.name not in names]
    if not given:
        kept.insert(0, inspect.Parameter("rows", inspect.Parameter.KEYWORD_ONLY))
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in kept]
    run.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    del run.__wrapped__  # type: ignore[attr-defined]
    return run


@contextmanager
def _own(fixtures: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield the fixtures with a folder and a monkeypatch that no other case has."""
    with pytest.MonkeyPatch.context() as patch:
        own = fixtures | ({"monkeypatch": patch} if "monkeypatch" in fixtures else {})
        if "tmp_path" in fixtures:
            own["tmp_path"] = Path(fixtures["tmp_path"], name)
            own["tmp_path"].mkdir()
        if "capsys" in fixtures:
            fixtures["capsys"].readouterr()
        yield own


def refusal(call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """Return the one line with which `call` refuses what it is given."""
    with pytest.raises(UsageError) as refused:
        call(*given, **named)
    assert "\n" not in str(refused.value)
    return str(refused.value)
