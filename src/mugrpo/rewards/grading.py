"""Answers become scores, judged in worker processes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Self

from mugrpo.config.rewards import FunctionOptions, MathOptions, RewardOption, WorkerOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Answer, Score, Status
from mugrpo.processes.messages import to_json
from mugrpo.rewards.functions import place_of
from mugrpo.rewards.pool import Pool


class Grader:
    """Judges answers by `rewards`, in worker processes that start at the first answer.

    The reward is the weighted sum of those that gave a number. The status is the first verifier's;
    where all are functions, RIGHT from a reward of `right_at` on. Raises UsageError where a reward
    cannot be had: no such function, math-verify not installed.
    """

    def __init__(
        self, rewards: tuple[RewardOption, ...], workers: WorkerOptions, *, right_at: float = 1.0
    ) -> None:
        if not rewards:
            raise UsageError("no reward is named: name one or several, rewards = ['math']")
        for reward in rewards:
            _check_it_is_there(reward)
        self._weights = {reward.label: reward.weight for reward in rewards}
        self._with_prompts = any(isinstance(reward, FunctionOptions) for reward in rewards)
        self._batch_size = workers.batch_size
        self._right_at = right_at
        self._pool = Pool([reward.model_dump() for reward in rewards], workers)

    def start(self) -> None:
        """Load the rewards now, to learn whether they can be; else the first answer does it."""
        self._pool.start()

    def scores(self, answers: Iterable[Answer]) -> Iterator[Score]:
        """The score of each answer, in their order; answers are taken as workers come free.

        Raises UsageError for a reward that cannot be loaded and for a column that a function
        cannot be sent, RunStopped for a function whose rewards are no list of numbers.
        """
        for outcomes in self._pool.run(self._calls(answers)):
            yield from map(self._score, outcomes)

    def close(self) -> None:
        """End every worker; a later call of `scores` starts new ones."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _calls(self, answers: Iterable[Answer]) -> Iterator[list[str]]:
        source = iter(answers)
        while batch := [self._item(answer) for answer in islice(source, self._batch_size)]:
            yield batch

    def _item(self, answer: Answer) -> str:
        problem = answer.problem
        item: dict[str, Any] = {"text": answer.text, "answer": problem.answer}
        if self._with_prompts:
            item |= {"id": problem.id, "prompt": problem.prompt, "columns": dict(problem.columns)}
            item["ids"] = [int(token) for token in answer.ids]
        try:
            return to_json(item)
        except (TypeError, ValueError):
            raise UsageError(_unsendable(problem.id, problem.columns)) from None

    def _score(self, outcome: Mapping[str, Any]) -> Score:
        if "failure" in outcome:
            status = Status.TIMEOUT if outcome["timeout"] else Status.ERROR
            return Score(status, None, {"reason": outcome["failure"]})
        values: dict[str, float | None] = outcome["values"]
        parts = {**values, **({"answer": outcome["answer"]} if "answer" in outcome else {})}
        given = [self._weights[name] * value for name, value in values.items() if value is not None]
        if not given:
            return Score(Status.SKIPPED, None, parts)
        reward = sum(given)
        right = Status.RIGHT if reward >= self._right_at else Status.WRONG
        return Score(Status(outcome.get("status", right)), reward, parts)


def _check_it_is_there(reward: RewardOption) -> None:
    """What can be told without loading anything."""
    if isinstance(reward, FunctionOptions):
        place, _, in_file = place_of(reward.function)
        if in_file and not Path(place).is_file():
            raise UsageError(
                f"the reward {reward.function}: there is no file {Path(place).absolute()}"
            )
    elif isinstance(reward, MathOptions) and importlib.util.find_spec("math_verify") is None:
        raise UsageError("the reward math needs math-verify: pip install 'mugrpo[math]'")


def _unsendable(problem: str, columns: Mapping[str, Any]) -> str:
    for name, value in columns.items():
        try:
            to_json(value)
        except (TypeError, ValueError) as error:
            return (
                f"column {name} of problem {problem!r} cannot be sent to a reward function: "
                f"{error}; leave the column out, or store it as text"
            )
    return f"problem {problem!r} cannot be sent to a reward function"
