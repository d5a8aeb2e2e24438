"""Problems of your own, read from a file or a hub data set. Rewards judge the responses."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mugrpo.config.base import RewardOption, WorkerOptions
from mugrpo.config.rewards import MathOptions, NumericOptions
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Message, Problem, Response, Score
from mugrpo.rewards.grading import Grader
from mugrpo.rewards.verifiers import has_number
from mugrpo.tasks.cells import answer_of, cell, prompt_of, require_one_answer, shown
from mugrpo.tasks.rows import is_local, read_rows

_ANSWER = DatasetOptions.model_fields["answer_column"].default


class GradedTask(ABC):
    """A task with a split that its class reads at the first use. `rewards` judge its responses."""

    def __init__(self, rewards: tuple[RewardOption, ...], workers: WorkerOptions) -> None:
        self.grader = Grader(rewards, workers)
        self._decides = any(reward.decides for reward in rewards)
        self._verifier = next((reward for reward in rewards if reward.verifies), None)

    @property
    @abstractmethod
    def _split(self) -> tuple[list[Problem], list[Problem]]:
        """The problems to train on, and those held out."""

    def train_problems(self) -> Sequence[Problem]:
        return self._split[0]

    def eval_problems(self) -> Sequence[Problem]:
        return self._split[1]

    def prepare(self, log: Path) -> list[str]:
        return self.grader.start(log)

    def score(self, responses: Iterable[Response]) -> Iterator[Score]:
        return self.grader.scores(responses)

    def decides(self, problem: Problem) -> bool:
        return self._decides

    def takes_groups(self, problem: Problem) -> bool:
        return self.grader.takes_groups

    def written(self, problem: Problem, answer: str) -> str:
        return self._verifier.written(answer) if self._verifier else answer

    def close(self) -> None:
        self.grader.close()


class Dataset(GradedTask):
    """A task with the problems of a data set under `options`.

    The data set is read at the first use. Reading raises UsageError, naming file and line, if a row
    is not a valid problem.
    """

    def __init__(self, options: DatasetOptions, workers: WorkerOptions) -> None:
        super().__init__(options.rewards, workers)
        self.options = options
        self._places: dict[str, str] = {}  # of the rows, by the problem's id
        self._repeated: list[str] = []  # places of rows that repeat others

    def every_problem(self, limit: int | None = None) -> list[Problem]:
        """Return the problems of `data` in its order, none held out: all, or `limit` of them.

        These are the ones with the lowest hashes, so those of a lower limit are among those of a
        higher one. A benchmark has no training split.
        """
        pairs = self._problems(self.options.data, self.options.split)
        lowest = sorted(range(len(pairs)), key=lambda row: pairs[row][0])[:limit]
        return [pairs[row][1] for row in sorted(lowest)]

    def prepare(self, log: Path, problems: Sequence[Problem] | None = None) -> list[str]:
        """Load the rewards and check the references of `problems`, or of both sides of the split.

        Otherwise as in `Task`.
        """
        said = self.grader.start(log)
        if problems is None:
            problems = [*self.train_problems(), *self.eval_problems()]
        if unreadable := self.grader.unreadable(problem.reference for problem in problems):
            bad = [problem for problem in problems if problem.reference in unreadable]
            answer = bad[0].reference
            raise UsageError(
                f"the rewards cannot use {len(bad)} of {len(problems)} reference answers; the "
                f"first: {shown(answer)} ({self._places[bad[0].id]}): {unreadable[answer]}; fix "
                "the data, or choose another reward"
            )
        if self._repeated:
            said.append(
                f"{len(self._repeated)} rows repeat the problem or id of an earlier one and are "
                f"left out (the first: {self._repeated[0]})"
            )
        return said

    @cached_property
    def _split(self) -> tuple[list[Problem], list[Problem]]:
        options = self.options
        pairs = self._problems(options.data, options.split)
        if options.eval_data is not None or options.eval_split is not None:
            data, split = options.eval_data or options.data, options.eval_split
            if split is None and not is_local(data):
                split = options.split
            held_out, train = self._problems(data, split, "eval_split"), pairs
        else:
            cut = int(options.eval_share * 2**64)
            if cut:  # even a small data set holds out at least one
                cut = max(cut, 1 + min(hash_ for hash_, _ in pairs))
            held_out = [pair for pair in pairs if pair[0] < cut]
            train = [pair for pair in pairs if pair[0] >= cut]
        held_out = sorted(held_out, key=lambda pair: pair[0])[: options.eval_problems]
        evaluated = {hash_ for hash_, _ in held_out}
        if overlap := [problem for hash_, problem in train if hash_ in evaluated]:
            raise UsageError(
                f"{len(overlap)} problems are in both the held-out and the training problems "
                f"(the first: {overlap[0].id!r}); choose another task.eval_data or task.eval_split"
            )
        if not train:
            raise UsageError(
                f"{options.data} has {len(held_out)} different problems, and all are held out; use "
                "more, or lower task.eval_share"
            )
        return [problem for _, problem in train], [problem for _, problem in held_out]

    def _problems(
        self, data: str, split: str | None, option: str = "split"
    ) -> list[tuple[int, Problem]]:
        """Return (hash of the prompt in its original form, problem) of each row, in order."""
        options = self.options
        subset, revision = options.subset, options.revision
        if is_local(data) and not (is_local(options.data) and is_local(options.eval_data or data)):
            subset = revision = None  # they are for the other source
        problems: dict[str, tuple[int, Problem]] = {}
        for place, row in read_rows(
            data, split=split, subset=subset, revision=revision, split_option=option
        ):
            prompt = prompt_of(cell(place, row, options.prompt_column, "prompt_column"), place)
            answer = self._answer(place, row)
            identity = hashlib.sha256(canonical([prompt, answer])).hexdigest()[:16]
            if options.id_column is not None:
                identity = str(cell(place, row, options.id_column, "id_column"))
            if identity in problems:
                self._repeated.append(place)
                continue
            columns = {name: one for name, one in row.items() if name != options.prompt_column}
            text = with_template(prompt, options.prompt_template, options.system_prompt)
            problem = Problem(identity, text, answer, columns)
            problems[identity] = stable_hash(prompt), problem
            self._places[identity] = place
        return list(problems.values())

    def _answer(self, place: str, row: dict[str, Any]) -> str:
        """Return the reference answer of a row, "" without an answer column.

        Functions need none, so they alone do without the column that is looked for by default.
        Raises UsageError if a reward cannot compare with it.
        """
        column, rewards = self.options.answer_column, self.options.rewards
        judged = any(reward.verifies for reward in rewards)
        if column is None or (column == _ANSWER and column not in row and not judged):
            return ""
        value = cell(place, row, column, "answer_column")
        for reward in rewards:
            value = reward.reference(value, row)
        text = answer_of(value, place, column)
        if any(isinstance(reward, MathOptions) for reward in rewards):
            require_one_answer(text, place, column)
        if any(isinstance(one, NumericOptions) for one in rewards) and not has_number(text):
            raise UsageError(
                f"{place}: column {column!r} is {shown(text)}, which the reward numeric cannot "
                "compare with; choose another reward"
            )
        for fault in filter(None, (reward.fault(text) for reward in rewards)):
            raise UsageError(f"{place}: column {column!r} {fault}")
        return text


def with_template(
    prompt: str | list[Message], template: str, system: str | None
) -> str | tuple[Message, ...]:
    """Return `prompt` with a template around its last user message, after a system message."""
    if isinstance(prompt, str):
        text = template.replace("{prompt}", prompt)
        if system is None:
            return text
        return ({"role": "system", "content": system}, {"role": "user", "content": text})
    messages = [dict(message) for message in prompt]
    for message in [one for one in messages if one["role"] == "user"][-1:]:
        message["content"] = template.replace("{prompt}", message["content"])
    if system is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return tuple(messages)


# Not a random split: a problem stays on its side when rows are added, shuffled or asked otherwise,
# so that recipes are compared on the same held-out problems.
def stable_hash(prompt: str | list[Message]) -> int:
    """Return a 64-bit hash of the prompt in its original form, which decides the split."""
    return int.from_bytes(hashlib.sha256(canonical(prompt)).digest()[:8], "big")


def canonical(value: Any) -> bytes:
    """Return a JSON value as bytes that do not depend on the order of its keys."""
    return json.dumps(value, sort_keys=True).encode()
