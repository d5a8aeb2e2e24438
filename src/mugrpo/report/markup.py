"""HTML and SVG as text that cannot be broken out of: what is not Markup is escaped on its way in.

Names, prompts, responses and options come from models, data sets and people. They reach a page
through `tag` or `text` only, which also make visible what a reader could not see or what would
turn the text around: control characters, directional overrides, lone surrogates.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable

_VOID = {"meta", "br"}


class Markup(str):
    """HTML that `tag`, `text` or `join` made."""

    __slots__ = ()


Content = str | Markup | None


def tag(name: str, /, *children: Content, **attributes: str | None) -> Markup:
    """One element. Attributes and children that are None are left out; `class_`, `aria_label`."""
    parts = [name]
    for key, value in attributes.items():
        if value is not None:
            parts.append(f'{key.rstrip("_").replace("_", "-")}="{_escaped(value)}"')
    inside = join(children)
    opening = " ".join(parts)
    return Markup(f"<{opening}>" if name in _VOID else f"<{opening}>{inside}</{name}>")


def text(value: str) -> Markup:
    """`value`, escaped; Markup stays what it is."""
    return value if isinstance(value, Markup) else Markup(_escaped(value))


def join(parts: Iterable[Content], between: str = "") -> Markup:
    return Markup(between.join(text(part) for part in parts if part is not None))


def visible(value: str) -> str:
    """`value` with a sign in the place of every character that would not be seen.

    Line feeds, tabs and spaces stay. Control characters become their pictures, others U+ and
    their number.
    """
    if value.isprintable():
        return value
    return "".join(map(_sign, value))


def cut(value: str, limit: int) -> tuple[str, str | None]:
    """The first `limit` characters of `value`, and a note where there were more."""
    if len(value) <= limit:
        return value, None
    return value[:limit], f"cut: {limit:,} of {len(value):,} characters shown"


def _escaped(value: str) -> str:
    return html.escape(visible(value), quote=True)


def _sign(character: str) -> str:
    code = ord(character)
    if character in "\n\t":
        return character
    if code < 0x20 or code == 0x7F:
        return chr(0x2400 + code) if code < 0x20 else "\u2421"
    if character.isprintable() or unicodedata.category(character) == "Zs":  # spaces
        return character
    return f"\u27e8U+{code:04X}\u27e9"
