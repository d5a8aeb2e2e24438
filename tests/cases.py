"""Which cases of a test run by default, and tables of cases that are one test."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def some(number: int, cases: Iterable[Any]) -> list[Any]:
    """Return `cases`. All but the first `number` of them run in `make test-all` only.

    Use it for cases that show the same in other places, if each takes a second or more.
    """
    cases = list(cases)
    values = [case if isinstance(case, tuple) else (case,) for case in cases[number:]]
    return cases[:number] + [pytest.param(*value, marks=pytest.mark.long) for value in values]


def table(names: str | Iterable[str], cases: Iterable[Any]) -> Callable[[Any], Any]:
    """Run a test with each of `cases` as one item, where `parametrize` would make many.

    A failure names its case. Each has a `tmp_path` and a `monkeypatch` of its own; the cases share
    all other fixtures, so none may leave anything in them.
    """
    names = names.replace(",", " ").split() if isinstance(names, str) else [*names]
    rows = [case if len(names) > 1 else (case,) for case in cases]

    def over(test: Any) -> Any:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for number, row in enumerate(rows):
                values = dict(zip(names, row, strict=True))
                with _own(fixtures, str(number)) as own:
                    try:
                        test(**own, **values)
                    except BaseException as failure:
                        failure.add_note(f"with {reprlib.repr(values)}")
                        raise

        signature = inspect.signature(test)
        left = [p for name, p in signature.parameters.items() if name not in names]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        del run.__wrapped__  # type: ignore[attr-defined]
        return run

    return over


@contextmanager
def _own(fixtures: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield the fixtures with a folder and a monkeypatch that no other case has."""
    with pytest.MonkeyPatch.context() as patch:
        own = fixtures | ({"monkeypatch": patch} if "monkeypatch" in fixtures else {})
        if "tmp_path" in fixtures:
            own["tmp_path"] = Path(fixtures["tmp_path"], f"case-{name}")
            own["tmp_path"].mkdir()
        if "capsys" in fixtures:
            fixtures["capsys"].readouterr()
        yield own
