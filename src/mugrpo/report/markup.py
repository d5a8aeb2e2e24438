"""HTML and SVG that no text can break out of: whatever is not Markup is escaped on its way in.

Names, prompts, responses and options come from models, data sets and people. They reach a page only
through `tag`, `text` or `join`. These also replace characters that are invisible, or that reverse
the text, with visible signs: control characters, directional overrides, lone surrogates.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence

_VOID = {"meta", "br", "input"}


class Markup(str):
    """HTML from `tag`, `text` or `join`."""

    __slots__ = ()


Content = str | Markup | None


def tag(name: str, /, *children: Content, **attributes: str | None) -> Markup:
    """Return an element. Attributes and children that are None are left out.

    Attribute names are written as in Python: `class_`, `aria_label`.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is not None:
            parts.append(f'{key.rstrip("_").replace("_", "-")}="{_escaped(value)}"')
    inside = join(children)
    opening = " ".join(parts)
    return Markup(f"<{opening}>" if name in _VOID else f"<{opening}>{inside}</{name}>")


def fold(title: Content, *children: Content) -> Markup:
    """Return `children` collapsed under a title that opens them. In print they are open."""
    return tag("details", tag("summary", title), *children, class_="fold")


def section(title: str, *content: Content) -> Markup | None:
    """Return a section, or None if all of its content is empty."""
    return tag("section", tag("h2", title), *content) if any(content) else None


def table(head: Sequence[Content], body: Sequence[Sequence[Content]]) -> Markup:
    """Return a table with one row of headings. It scrolls sideways if it is too wide."""
    heads = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head)))
    rows = [tag("tr", *(tag("td", cell) for cell in cells)) for cells in body]
    return tag("div", tag("table", heads, tag("tbody", *rows)), class_="scroll")


def text(value: str) -> Markup:
    """Return `value` escaped, or unchanged if it is Markup."""
    return value if isinstance(value, Markup) else Markup(_escaped(value))


def join(parts: Iterable[Content], between: str = "") -> Markup:
    """Return the parts that are not None, escaped and joined."""
    return Markup(between.join(text(part) for part in parts if part is not None))


def visible(value: str) -> str:
    """Return `value` with a visible sign for every invisible character.

    Line feeds, tabs and spaces stay. ASCII control characters become Unicode's pictures of them,
    other invisible ones become U+ and their code point.
    """
    if value.isprintable():
        return value
    return "".join(map(_sign, value))


def line_ends(value: str) -> str:
    """Return `value` with a visible sign before each line feed."""
    return value.replace("\n", "↵\n")


def cut(value: str, limit: int) -> tuple[str, str | None]:
    """Return the first `limit` characters of `value`, and a note if there are more."""
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
