"""Cells of a data set: found by a column's name or a dotted path, read as text or as a prompt."""

from __future__ import annotations

import ast
import difflib
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Message


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


_ROLES = ("system", "user", "assistant", "tool", "developer")
# How a conversation begins that was stored as text, be it one that no parser reads.
_STORED = re.compile(r"""\s*\[\s*\{\s*['"](?:role|content|from|value)['"]\s*:""")


def prompt_of(value: Any, place: str) -> str | list[Message]:
    """Return a prompt from the data: text, or a conversation that a model can answer.

    A conversation may be stored as text, in JSON or as pandas writes one into a CSV file. All keys
    of its messages are kept, for the chat template. Raises UsageError, naming `place`, if the
    prompt is anything else.
    """
    if isinstance(value, str):
        if not value.strip():
            raise UsageError(f"{place}: the prompt is empty")
        stored = _stored(value, place)
        if stored is None:
            return tokenizable(value, place)
        value = stored
    if not isinstance(value, list | tuple) or not value:
        inside = [name for name, one in value.items() if one] if isinstance(value, dict) else []
        hint = f"; a dotted task.prompt_column names an entry: COLUMN.{inside[0]}" if inside else ""
        raise UsageError(
            f"{place}: the prompt is {shown(value)}; it must be text, or a list of "
            f'{{"role": ..., "content": ...}}{hint}'
        )
    messages = [_message(message, number, place) for number, message in enumerate(value)]
    if messages[-1]["role"] not in ("user", "tool"):
        last = messages[-1]["role"]
        raise UsageError(
            f"{place}: the prompt ends with the turn of the {last}; its last turn must be the "
            "user's or a tool's"
        )
    return messages


def _stored(text: str, place: str) -> Any:
    """Return the conversation that a text stores, or a table with one, or None for other text."""
    value = literal(text)
    entries = [value, *value.values()] if isinstance(value, dict) else [value]
    if any(map(_converses, entries)):
        return value
    if value is None and _STORED.match(text) and text.rstrip().endswith("]"):
        raise UsageError(
            f"{place}: the prompt is a conversation stored as text that is not JSON "
            f"({shown(text)}); store it as JSON (json.dumps), or the data as JSONL or parquet"
        )
    return None


def _converses(value: Any) -> bool:
    messages = value if isinstance(value, list) else [value]
    return bool(messages) and all(
        isinstance(one, dict)
        and ("from" in one or ("role" in one and ("content" in one or "tool_calls" in one)))
        for one in messages
    )


def _message(message: Any, number: int, place: str) -> Message:
    kept: Message = present(message) if isinstance(message, dict) else {}
    if kept.get("tool_calls"):
        kept.setdefault("content", "")  # it calls tools without a word
    if not isinstance(kept.get("content"), str):
        raise UsageError(
            f"{place}: message {number} of the prompt is {shown(message)}; it must be "
            '{"role": ..., "content": text}'
        )
    if kept.get("role") not in _ROLES:
        raise UsageError(
            f"{place}: message {number} of the prompt has role {kept.get('role')!r}; it "
            f"must be one of {', '.join(_ROLES)}"
        )
    tokenizable(kept["content"], place)
    tokenizable(json.dumps(kept, ensure_ascii=False, default=str), place)
    return kept


def present(value: Any) -> Any:
    """Return `value` without null entries: parquet fills tables up to the keys of other rows."""
    if isinstance(value, dict):
        return {name: present(inner) for name, inner in value.items() if inner is not None}
    return [present(inner) for inner in value] if isinstance(value, list | tuple) else value
