"""Verdicts of verifiers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mugrpo.disk.records import Status


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's verdict: RIGHT, WRONG or NO_ANSWER, and the answer that it read in the text."""

    status: Status
    answer: str | None = None

    @property
    def right(self) -> bool:
        return self.status is Status.RIGHT


Verifier = Callable[[str, str], Verdict]  # (text, reference answer)
