"""What a task is: problems to train on, problems to evaluate on, and a verdict on a response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mugrpo.records import FinishReason, Problem, Score


class Task(Protocol):
    """A verifiable task. Two calls with the same options must give the same problems."""

    def train_problems(self) -> Sequence[Problem]:
        """Problems to train on, ids unique."""
        ...

    def eval_problems(self) -> Sequence[Problem]:
        """Held-out problems: none of them is a training problem."""
        ...

    def score(self, problem: Problem, response: str, finish_reason: FinishReason) -> Score:
        """The verdict on `response` (decoded, without special tokens).

        An exception becomes `Status.ERROR` with its text as the reason.
        """
        ...
