"""Cells of a data set: found by a column's name or a dotted path, and read as text."""

from __future__ import annotations

import ast
import difflib
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from mugrpo.disk.errors import UsageError


def cell(place: str, row: Mapping[str, Any], column: str, option: str) -> Any:
    """Return what `entry` does. Raises UsageError with the columns of the row if it has none."""
    try:
        return entry(row, column)
    except KeyError:
        names = list(_names(row))
        near = difflib.get_close_matches(column, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? Name it" if near else "name one of them"
        raise UsageError(
            f"{place} has no column {column!r} (it has {', '.join(map(repr, names))}); {hint} with "
            f"--task.{option}"
        ) from None


def entry(row: Mapping[str, Any], path: str) -> Any:
    """Return the cell of the column `path`, or of a dotted path: "reward_model.ground_truth".

    The path leads through tables and lists ("answers.0"), and through text that writes one. Raises
    KeyError if there is nothing.
    """
    if path in row:
        return row[path]
    value: Any = row
    for name in path.split("."):
        value = literal(value) if isinstance(value, str) else value
        try:
            value = value[int(name)] if isinstance(value, list) else value[name]
        except (TypeError, ValueError, IndexError):
            raise KeyError(path) from None
    return value


def _names(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the columns of a row, and the dotted paths of the tables in them."""
    for name, value in row.items():
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in _names(value))


def literal(text: str) -> Any:
    """Return the table or list that `text` writes in JSON or Python, as pandas does, or None."""
    text = text.strip()
    if not (text.startswith(("[", "{")) and text.endswith(("]", "}"))):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        with warnings.catch_warnings(action="ignore"):  # "\(" in a string
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def text_of(value: Any, place: str, column: str, option: str) -> str:
    """Return an answer or id as text. Raises UsageError if it is neither text nor a number."""
    if isinstance(value, str) and value.strip():
        return tokenizable(value, place)
    if (text := number_text(value)) is not None:
        return text
    hint = ', such as "true" in quotes' if isinstance(value, bool) else ""
    if isinstance(value, dict | list) and value:
        inner = next(iter(value)) if isinstance(value, dict) else 0
        hint = f", such as an entry of it: --task.{option} {column}.{inner}"
    raise UsageError(
        f"{place}: column {column!r} is {shown(value)}; it must be text or a finite number{hint}"
    )


def number_text(value: Any) -> str | None:
    """Return a finite number without an exponent or zeros at its end, or None for anything else.

    Return "4" for the float 4.0: JSON, pandas and parquet make floats of integers.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, float | Decimal) or not math.isfinite(value):
        return None
    text = f"{Decimal(str(value)):f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def tokenizable(text: str, place: str) -> str:
    """Return `text`. Raises UsageError for half a surrogate pair, which no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{place}: character {error.start} is half a surrogate pair "
            f"({text[error.start]!r}), which is not text; fix the data"
        ) from None
    return text


def shown(value: Any) -> str:
    """Return a value as an error message shows it: JSON, cut to 60 characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
