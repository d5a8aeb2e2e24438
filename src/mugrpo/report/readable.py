"""Numbers and durations as text for readers."""

from __future__ import annotations

import math

MISSING = "\u2013"  # an en dash: nothing was measured
MINUS = "\u2212"
TIMES = "\u00d7"

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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
        power = ten_to(exponent)
        text = power if mantissa == "1" else f"{mantissa}{TIMES}{power}"
    return text.replace("-", MINUS)


def ten_to(exponent: int) -> str:
    """Return a power of ten, with the exponent in superscript."""
    return "10" + str(exponent).translate(_SUPERSCRIPTS)


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


def time_unit(seconds: float) -> tuple[float, str]:
    """Return a good unit for an axis up to `seconds`: (seconds in the unit, its name)."""
    if seconds < 180:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")
