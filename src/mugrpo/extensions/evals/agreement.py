"""Agreement of two verifiers on the same responses, from the parts of their scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A response that exactly one of two verifiers calls right.

    `first_answer` and `second_answer` are the answers that they read, None if they found none.
    """

    response: str  # the id under which the response was passed
    reference: str
    first_right: bool
    first_answer: str | None
    second_answer: str | None


@dataclass(slots=True)
class Agreement:
    """The number of responses with each pair of verdicts, and those with different verdicts."""

    both_right: int = 0
    only_first: int = 0
    only_second: int = 0
    both_wrong: int = 0
    unjudged: int = 0  # without the verdict of one or both: truncated, or a judge failed
    one_answer: int = 0  # of the judged: only one of the two found an answer in the text
    disagreements: list[Disagreement] = field(default_factory=list)

    @property
    def judged(self) -> int:
        """Return the number of responses on which both gave a verdict."""
        return self.both_right + self.only_first + self.only_second + self.both_wrong

    @property
    def share(self) -> float | None:
        """Return the share of the judged responses with equal verdicts, None if there are none."""
        return (self.both_right + self.both_wrong) / self.judged if self.judged else None


def agreement(
    responses: Iterable[tuple[str, str, Mapping[str, Any]]], first: str, second: str
) -> Agreement:
    """Return how two verifiers agree on `responses`: (id, reference answer, parts of the score).

    `first` is the name of the run's first verifier, whose answer is the part "answer". `second` is
    that of another one, whose answer is "answer/NAME". No answer in a text is a verdict: wrong.
    """
    counts = Agreement()
    for response, reference, parts in responses:
        verdicts = parts.get(first), parts.get(second)
        if None in verdicts:
            counts.unjudged += 1
            continue
        right, right_too = (verdict == 1.0 for verdict in verdicts)
        answers = parts.get("answer"), parts.get(f"answer/{second}")
        counts.one_answer += (answers[0] is None) != (answers[1] is None)
        counts.both_right += right and right_too
        counts.both_wrong += not (right or right_too)
        counts.only_first += right > right_too
        counts.only_second += right < right_too
        if right != right_too:
            counts.disagreements.append(Disagreement(response, reference, right, *answers))
    return counts
