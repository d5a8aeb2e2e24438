"""A task whose problems come from several sources, each of them a task of its own."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from mugrpo.config.base import WorkerOptions
from mugrpo.config.tasks import MixtureOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem, Response, Score
from mugrpo.tasks.base import Task


class Mixture:
    """The tasks of a mixture's sources as one. A problem's id begins with its source's name.

    Problems are in the order of the sources. A faulty source raises UsageError with its name.
    """

    def __init__(self, options: MixtureOptions, workers: WorkerOptions) -> None:
        self._sources: dict[str, Task] = {one.source: one.made(workers) for one in options.sources}

    def train_problems(self) -> Sequence[Problem]:
        """Return the problems of all sources to train on.

        Raises UsageError if a source holds out a prompt that another one trains on.
        """
        problems = self._all("train")
        # As text, which two equal conversations share
        held_out = {repr(problem.prompt): problem.source for problem in self._all("eval")}
        leaks = [problem for problem in problems if repr(problem.prompt) in held_out]
        if leaks:
            other = held_out[repr(leaks[0].prompt)]
            raise UsageError(
                f"{len(leaks)} problems of the source {leaks[0].source!r} are held out in the "
                f"source {other!r} (the first: {leaks[0].id!r}), so evaluations would ask what was "
                "trained on; hold out the same problems in both, or leave them out of one"
            )
        return problems

    def eval_problems(self) -> Sequence[Problem]:
        return self._all("eval")

    def prepare(self, log: Path) -> list[str]:
        said: dict[str, None] = {}  # sources with the same judges say the same
        for name, task in self._sources.items():
            with _named(name):
                own = log.with_name(f"{log.stem}-{name}{log.suffix}")
                said |= dict.fromkeys(task.prepare(own))
        return list(said)

    def score(self, responses: Iterable[Response]) -> Iterator[Score]:
        by_source: dict[str, list[Response]] = {name: [] for name in self._sources}
        order: list[str] = []
        for response in responses:
            name = response.problem.source
            assert name is not None, f"{response.problem.id!r} is not a problem of a mixture"
            by_source[name].append(response)
            order.append(name)
        scores = {name: self._sources[name].score(some) for name, some in by_source.items()}
        for name in order:
            yield next(scores[name])

    def decides(self, problem: Problem) -> bool:
        return self._of(problem).decides(problem)

    def takes_groups(self, problem: Problem) -> bool:
        return self._of(problem).takes_groups(problem)

    def written(self, problem: Problem, answer: str) -> str:
        return self._of(problem).written(problem, answer)

    def close(self) -> None:
        with ExitStack() as stack:  # close all, even if one fails
            for task in self._sources.values():
                stack.callback(task.close)

    def _of(self, problem: Problem) -> Task:
        assert problem.source is not None, f"{problem.id!r} is not a problem of a mixture"
        return self._sources[problem.source]

    def _all(self, side: str) -> list[Problem]:
        problems: list[Problem] = []
        for name, task in self._sources.items():
            with _named(name):
                some = task.train_problems() if side == "train" else task.eval_problems()
            problems += [replace(p, id=f"{name}/{p.id}", source=name) for p in some]
        return problems


@contextmanager
def _named(source: str) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(f"the source {source!r}: {error}") from None
