"""The parts of a page: the macros of parts.html, which no text can break out of.

Names, prompts, responses and options come from models, data sets and people. Whatever is not Markup
is escaped on its way into a macro, and characters that are invisible, or that reverse the text, are
replaced with visible signs.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from mugrpo.report.charts import Picture, page_parts, script, sheet
from mugrpo.report.readable import visible

Content = str | Markup | None


def part(name: str, *content: Any, **options: Any) -> Markup:
    """Return the macro `name` of parts.html, called with these arguments. It may be empty."""
    made: Markup = getattr(_macros(), name)(*content, **options)
    return Markup(made.strip())


def drawn(title: str, note: str, picture: Picture | None) -> Markup | None:
    """Return the picture as a figure under its title, or None without a picture."""
    return part("figure", title, note, *page_parts(picture)) if picture else None


def document(title: str, content: Sequence[Content], every: int | None = None) -> str:
    """Return a whole page. Its security policy allows only its own script and style.

    A browser loads it again `every` so many seconds.
    """
    style = sheet("colors.css") + sheet("style.css")
    policy = (
        f"default-src 'none'; script-src '{_digest(script())}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    made = part("document", title, content, every, policy, Markup(style), Markup(script()))
    return f"{made}\n"


def _digest(source: str) -> str:
    """Return a source's hash as a security policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


@cache
def _macros() -> Any:
    environment = Environment(
        autoescape=True,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(sheet),
    )
    return environment.get_template("parts.html").module


def _shown(value: Any) -> Any:
    if value is None:
        return ""
    return value if hasattr(value, "__html__") else visible(str(value))
