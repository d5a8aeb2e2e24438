"""Problems that reasoning-gym generates (arXiv 2505.24760), judged by its own scores."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from mugrpo.config.base import WorkerOptions
from mugrpo.config.rewards import FunctionOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem
from mugrpo.extensions.gym import ReasoningGymOptions
from mugrpo.processes.peer import PeerLost
from mugrpo.processes.workers import Limits, Worker
from mugrpo.tasks.dataset import GradedTask, with_template

_REWARD = FunctionOptions(function="mugrpo.extensions.gym.scores:score_answer", verdict=True)
_NO_LIMITS = Limits(0.0, 0.0, 0)


class ReasoningGym(GradedTask):
    """A task with the problems of one data set of reasoning-gym, always the same ones.

    They are generated at the first use, by two workers. That raises UsageError as
    `worker.sides_of` does, and if the two generate different problems: a run could be neither
    resumed nor evaluated.
    """

    def __init__(self, options: ReasoningGymOptions, workers: WorkerOptions) -> None:
        super().__init__((_REWARD,), workers)
        self.options = options
        self._name = Path(options.data).name  # a folder here may have the same name
        self._config = json.loads(json.dumps(options.config))  # tuples are lists, as in the file

    @cached_property
    def _split(self) -> tuple[list[Problem], list[Problem]]:
        options = self.options
        setup = {
            "dataset": self._name,
            "config": self._config,
            "wanted": [options.train_problems, options.eval_problems],
        }
        kind = f"generator of {self._name}"
        workers = [
            Worker("mugrpo.extensions.gym.worker", setup, _NO_LIMITS, kind=kind, log=None)
            for _ in range(2)
        ]
        try:
            first, second = map(_sides, workers)
        finally:
            for worker in workers:
                worker.end()
        if first != second:
            raise UsageError(
                f"the data set {self._name} of reasoning-gym generates other problems in each "
                "process, so a run could be neither resumed nor evaluated; choose another, or "
                "save its problems to a file and name that as task.data of the task 'dataset'"
            )
        train, held_out = ([self._problem(*one) for one in side] for side in first)
        return train, held_out

    def written(self, problem: Problem, answer: str) -> str:
        return f"<answer>{answer}</answer>" if self.options.answer == "tags" else answer

    def _problem(self, index: int, entry: dict[str, Any]) -> Problem:
        options = self.options
        prompt = with_template(entry["question"], options.prompt_template, options.system_prompt)
        columns = {
            "entry": entry,
            "dataset": self._name,
            "config": self._config,
            "part": options.answer,
        }
        answer = "" if entry["answer"] is None else str(entry["answer"])  # there may be many
        return Problem(f"{self._name}-{index}", prompt, answer, columns)


def _sides(worker: Worker) -> list[list[Any]]:
    """Wait for what a worker generates, however long it takes."""
    worker.silence = None
    try:
        while (message := worker.hear()) is None:
            pass
    except PeerLost as lost:
        raise worker.never_ready(lost) from None
    if "refused" in message:
        raise UsageError(message["refused"])
    sides: list[list[Any]] = message["sides"]
    return sides
