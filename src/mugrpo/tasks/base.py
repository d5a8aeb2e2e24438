"""What a task is: problems to train on, problems to evaluate on, and verdicts on responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from mugrpo.disk.records import Answer, Problem, Score


class Task(Protocol):
    """A verifiable task. Two calls with the same options must give the same problems."""

    def train_problems(self) -> Sequence[Problem]:
        """Problems to train on, ids unique."""
        ...

    def eval_problems(self) -> Sequence[Problem]:
        """Held-out problems: none of them is a training problem."""
        ...

    def prepare(self) -> None:
        """Load what judging needs, to learn before all work whether it can be had.

        Raises UsageError where it cannot.
        """
        ...

    def score(self, answers: Iterable[Answer]) -> Iterator[Score]:
        """The verdicts on `answers`, in their order.

        An answer that cannot be judged has Status.ERROR or Status.TIMEOUT with the reason in
        `parts["reason"]`. Raises RunStopped where the judge itself is broken.
        """
        ...

    def close(self) -> None:
        """End the processes it started, if any."""
        ...
