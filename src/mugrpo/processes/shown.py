"""Text for a terminal."""

from __future__ import annotations

from mugrpo.config.private import concealed
from mugrpo.processes.messages import visible


def shown(text: str) -> str:
    """Return `text` without secrets, and with the characters escaped that a terminal obeys."""
    return visible(concealed(text))
