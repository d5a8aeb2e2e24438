"""Places in a run at which a test may kill it. A run passes them and goes on."""

from __future__ import annotations

from collections.abc import Callable

watchers: list[Callable[[str, str], None]] = []


def passing(place: str, what: object = "") -> None:
    """Tell the watchers that the process is at `place`, with `what` (a path, say) in hand."""
    for watch in watchers:
        watch(place, str(what))
