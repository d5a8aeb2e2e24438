"""Verdicts of verifiers."""

from collections.abc import Callable
from dataclasses import dataclass

from mugrpo.disk.records import Status


class Unfinished(Exception):
    """The judge cannot finish a response. The text says what ran out."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's verdict: RIGHT, WRONG or NO_ANSWER, and the answer that it read in the text."""

    status: Status
    answer: str | None = None
    credit: float | None = None  # the reward, if it is not 1 for RIGHT and 0 otherwise
    detail: str | None = None  # why, for a reader

    @property
    def right(self) -> bool:
        return self.status is Status.RIGHT

    @property
    def value(self) -> float:
        return float(self.right) if self.credit is None else self.credit


def verdict(right: bool, answer: str | None) -> Verdict:
    """Return the verdict on an answer, which is None if there is none."""
    if answer is None:
        return Verdict(Status.NO_ANSWER)
    return Verdict(Status.RIGHT if right else Status.WRONG, answer)


# A function of (text, reference answer). If it has an attribute `said`, the user is told that.
Verifier = Callable[[str, str], Verdict]
