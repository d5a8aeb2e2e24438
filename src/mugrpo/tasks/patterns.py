"""Reference answers inside longer texts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mugrpo.disk.errors import UsageError
from mugrpo.processes.limited import LimitError, limited

# What task.answer_pattern may take: for all answers, and answers per further second of CPU time.
_SECONDS, _MEGABYTES, _PER_SECOND = 20, 4096, 1000


def found_by(pattern: str, texts: Sequence[str]) -> dict[str, str | None]:
    """Return what the first group of `pattern` matches in each text, or None if nothing.

    A process with limits applies the pattern. Raises UsageError if it takes too much.
    """

    def found() -> list[str | None]:
        matches = [re.search(pattern, text) for text in texts]
        return [match[1].strip() if match and match[1] else None for match in matches]

    seconds = _SECONDS + len(texts) // _PER_SECOND
    try:
        answers: list[str | None] = limited(found, seconds=seconds, megabytes=_MEGABYTES)
    except LimitError as error:
        raise UsageError(
            f"task.answer_pattern = {pattern!r} {error} for {len(texts)} answers; choose one that "
            "tries fewer ways to match"
        ) from None
    return dict(zip(texts, answers, strict=True))
