"""What every process that this one starts gets."""

from __future__ import annotations

import os


def passed_on(**more: str) -> dict[str, str]:
    """Return the environment variables of a process that this one starts: its own, and `more`.

    `python -m` and `-c` look for modules in the working directory first. A clone or a received run
    that its user stands in may have a folder `mugrpo` or a `pip.py`, and the variable keeps Python,
    and all that it starts in turn, from running it.
    """
    return {**os.environ, "PYTHONSAFEPATH": "1", **more}
