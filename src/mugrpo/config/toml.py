"""A config as a TOML document: one table for each group, and comments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mugrpo.config.describe import as_toml

_ALWAYS = ("preset", "model.path", "task.name")


def as_document(raw: dict[str, Any], comments: Sequence[str] = ()) -> str:
    """Return `raw` as TOML with `comments` above it. Options that are None are left out."""
    lines = [f"# {line}" for comment in comments for line in comment.splitlines()]
    lines += [""] if lines else []
    lines += [_line(name, value) for name, value in raw.items() if not isinstance(value, dict)]
    for group, table in raw.items():
        if isinstance(table, dict):
            lines += ["", f"[{group}]"]
            lines += [_line(name, value) for name, value in table.items() if value is not None]
    return "\n".join(lines).lstrip("\n") + "\n"


def _line(name: str, value: Any) -> str:
    return f"{name} = {as_toml(value)}"
