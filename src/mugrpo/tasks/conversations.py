"""Prompts of a data set: text, or a conversation that a model can answer."""

from __future__ import annotations

import json
import re
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Message
from mugrpo.tasks.cells import literal, shown, tokenizable

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
