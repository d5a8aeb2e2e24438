"""The interface of a task: problems to train and evaluate on, and verdicts on responses."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from mugrpo.disk.records import Problem, Response, Score


class Task(Protocol):
    """A verifiable task. Tasks with the same options must always give the same problems."""

    def train_problems(self) -> Sequence[Problem]:
        """Return the problems to train on. Their ids are unique."""
        ...

    def eval_problems(self) -> Sequence[Problem]:
        """Return the held-out problems, which are disjoint from the training problems."""
        ...

    def prepare(self, log: Path) -> list[str]:
        """Load what judging needs, so that a failure shows before any work is done.

        Return sentences for the user. What the judges print goes to `log`.
        Raises UsageError if something cannot be loaded.
        """
        return []

    def score(self, responses: Iterable[Response]) -> Iterator[Score]:
        """Yield the score of each of `responses`, in order.

        A response that cannot be judged has Status.ERROR or Status.UNFINISHED, with the reason in
        `parts["reason"]`. Raises RunStopped if the judge itself is broken.
        """
        ...

    def decides(self, problem: Problem) -> bool:
        """Return whether verdicts say which responses to `problem` are right."""
        return True

    def takes_groups(self, problem: Problem) -> bool:
        """Return whether what judges responses to `problem` gets whole groups at once."""
        return False

    def written(self, problem: Problem, answer: str) -> str:
        """Return a response to `problem` whose answer is `answer`, in the form that is judged."""
        return answer

    def close(self) -> None:
        """End the processes that the task started, if any."""
        ...
