"""Numbers, durations and texts of strangers, for readers."""

import math
import unicodedata
from collections.abc import Sequence

MISSING = "\u2013"  # an en dash: nothing was measured
MINUS = "\u2212"
TIMES = "\u00d7"

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

# What would end a cell or begin HTML, a link or an image.
_SAFE = str.maketrans({"`": "'", "\n": "↵", "\t": " ", "<": "&lt;", "&": "&amp;"})
_SAFE |= str.maketrans({sign: f"\\{sign}" for sign in "\\|["})


def plain(value: float | None, digits: int = 3) -> str:
    """Return a number with `digits` significant digits and separated thousands."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if -3 <= exponent < 6:
        text = f"{value:,.{max(0, digits - 1 - exponent)}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        mantissa = f"{value / 10.0**exponent:.{digits - 1}f}".rstrip("0").rstrip(".")
        power = "10" + str(exponent).translate(_SUPERSCRIPTS)
        text = power if mantissa == "1" else f"{mantissa}{TIMES}{power}"
    return text.replace("-", MINUS)


def duration(seconds: float | None) -> str:
    """Return a duration in the form 85 ms, 3.2 s, 2:05 or 1:02:05."""
    if seconds is None:
        return MISSING
    if seconds < 0.9995:
        return f"{plain(seconds * 1000, 2)} ms" if seconds else "0 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def size_text(size: int) -> str:
    """Return bytes as text with two digits or three: 6.1 GB, 450 kB."""
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.{1 if value < 9.95 and units[0] != 'B' else 0}f} {units[0]}"


def rounded(seconds: float) -> str:
    """Return a duration that is known roughly: 40 seconds, 3 minutes, 2.5 hours or 4 days."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 1.5 * size:
            return f"{plain(seconds / size, 1 if seconds >= 10 * size else 2)} {unit}s"
    return f"{plain(seconds, 1)} seconds"


def time_unit(seconds: float) -> tuple[float, str]:
    """Return a good unit for an axis up to `seconds`: (seconds in the unit, its name)."""
    if seconds < 180:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")


def with_signs(value: str) -> str:
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


def in_markdown(text: str) -> str:
    """Return a stranger's text as text in Markdown: it is no HTML, link or code, and ends no cell.

    It moves no terminal's cursor either.
    """
    return with_signs(text).translate(_SAFE)


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, whose columns line up in plain text too.

    Titles and names come from files, so their characters are text in it.
    """
    cells = [[in_markdown(text) for text in row] for row in (head, *body)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [" | ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)) for row in cells]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def _sign(character: str) -> str:
    code = ord(character)
    if character in "\n\t":
        return character
    if code < 0x20 or code == 0x7F:
        return chr(0x2400 + code) if code < 0x20 else "\u2421"
    if character.isprintable() or unicodedata.category(character) == "Zs":  # spaces
        return character
    return f"\u27e8U+{code:04X}\u27e9"
