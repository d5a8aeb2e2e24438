"""Cells of a data set: found by a column's name or a dotted path, read as text or as a prompt."""

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


def cell(where: str, row: Mapping[str, Any], column: str, option: str) -> Any:
    """Return what `entry` does. Raises UsageError with the columns of the row if it has none."""
    try:
        return entry(row, column)
    except KeyError:
        names = list(_names(row))
        near = difflib.get_close_matches(column, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? Name it" if near else "name one of them"
        if len(names) == 1 and re.search("[;\t|]", names[0]):  # of a CSV file
            hint = "separate them by commas, and name one"
        raise UsageError(
            f"{where} has no column {column!r} (it has {', '.join(map(repr, names))}); {hint} with "
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


def has(row: Mapping[str, Any], path: str) -> bool:
    """Return whether a row has the column or dotted path."""
    try:
        entry(row, path)
    except KeyError:
        return False
    return True


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


def answer_of(value: Any, where: str, column: str) -> str:
    """Return a reference answer as text: of a solution, what follows its last "####".

    Raises UsageError if it is neither text nor a number.
    """
    if isinstance(value, str) and value.strip():
        solved = "####" in value and literal(value) is None  # JSON holds tests, which may print it
        return value.rpartition("####")[2].strip() if solved else value
    if isinstance(value, float) and _lost_digits(value):
        raise UsageError(
            f"{where}: column {column!r} is {value!r}, which may have lost digits: an integer "
            "above 64 bits becomes a float in parquet; store it as text"
        )
    if (text := number_text(value)) is not None:
        return text
    raise UsageError(
        f"{where}: column {column!r} is {shown(value)}; it must be text or a finite number"
        + (_inside(value, column) or "; fill it in, or remove the row")
    )


def _inside(value: Any, column: str) -> str:
    """Return a hint at an entry of a table or list, or ""."""
    if not isinstance(value, dict | list) or not value:
        return ""
    inner = next(iter(value)) if isinstance(value, dict) else 0
    return f", such as an entry of it: --task.answer_column {column}.{inner}"


def require_one_answer(text: str, where: str, column: str) -> None:
    """Raise UsageError if a reference is JSON that holds an answer among other things.

    [1, 2] is an interval or a list.
    """
    value = literal(text)
    entries = value if isinstance(value, list) else []
    if isinstance(value, dict) or any(isinstance(one, str | dict) for one in entries):
        raise UsageError(
            f"{where}: column {column!r} is {shown(text)}; it must hold the answer alone"
            + _inside(value, column)
        )


def _lost_digits(value: float) -> bool:
    """Return whether a float can be an integer that was rounded: large, with over 15 digits.

    A float keeps up to 15 digits, so 6.02214076e23 is as it was written.
    """
    if not math.isfinite(value) or abs(value) < 2**53:
        return False
    return len(Decimal(repr(value)).normalize().as_tuple().digits) > 15


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


def shown(value: Any) -> str:
    """Return a value as an error message shows it: JSON, cut to 60 characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


_ROLES = ("system", "user", "assistant", "tool", "developer")


def prompt_of(value: Any, where: str) -> str | list[Message]:
    """Return a prompt from the data: text, or a conversation that a model can answer.

    A conversation may be stored as text, in JSON or as pandas writes one into a CSV file. All keys
    of its messages are kept, for the chat template. Raises UsageError, naming `where`, if the
    prompt is anything else.
    """
    if isinstance(value, str):
        stored = literal(value)
        if not _converses(stored):
            if not value.strip():
                raise UsageError(f"{where}: the prompt is empty")
            if any("\ud800" <= character <= "\udfff" for character in value):
                raise UsageError(f"{where}: the prompt has half a surrogate pair; remove it")
            return value
        value = stored
    if not isinstance(value, list | tuple) or not value:
        raise UsageError(
            f"{where}: the prompt is {shown(value)}; it must be text, or a list of "
            '{"role": ..., "content": ...}; a dotted task.prompt_column names an entry of a table'
        )
    messages = [_message(message, number, where) for number, message in enumerate(value)]
    if (last := messages[-1]["role"]) not in ("user", "tool"):
        raise UsageError(
            f"{where}: the prompt ends with the turn of the {last}; its last turn must be the "
            "user's or a tool's"
        )
    return messages


def _converses(value: Any) -> bool:
    messages = value if isinstance(value, list) else []
    return bool(messages) and all(
        isinstance(one, dict) and "role" in one and ("content" in one or "tool_calls" in one)
        for one in messages
    )


def _message(message: Any, number: int, where: str) -> Message:
    kept: dict[str, Any] = present(message) if isinstance(message, dict) else {}
    parts = kept.get("content")
    if isinstance(parts, list) and parts and all(map(_is_text, parts)):
        kept["content"] = "".join(part["text"] for part in parts)
    if kept.get("tool_calls"):
        kept.setdefault("content", "")  # it calls tools without a word
    if not isinstance(kept.get("content"), str) or kept.get("role") not in _ROLES:
        raise UsageError(
            f"{where}: message {number} of the prompt is {shown(message)}; it must be "
            f'{{"role": one of {", ".join(_ROLES)}, "content": text}}'
        )
    return kept


def _is_text(part: Any) -> bool:
    """Return whether a part of a message's content, as OpenAI has them, is text."""
    text = part.get("text") if isinstance(part, dict) else None
    return isinstance(text, str) and part.get("type") == "text"


def present(value: Any) -> Any:
    """Return `value` without null entries: parquet fills tables up to the keys of other rows."""
    if isinstance(value, dict):
        return {name: present(inner) for name, inner in value.items() if inner is not None}
    return [present(inner) for inner in value] if isinstance(value, list | tuple) else value
