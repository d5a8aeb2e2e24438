"""Named places in a run at which a test can kill it. An ordinary run just passes them."""

from __future__ import annotations

from collections.abc import Callable

watchers: list[Callable[[str, str], None]] = []


def passing(place: str, what: object = "") -> None:
    """Tell the watchers that the process is at `place`, working on `what` (a path, for example)."""
    for watch in watchers:
        watch(place, str(what))
