"""Your own problems: rows of a file or of the hub, mapped to problems, judged by rewards."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from mugrpo.config.tasks import DatasetOptions
from mugrpo.errors import UsageError
from mugrpo.records import Answer, Message, Problem, Score
from mugrpo.tasks.grading import Grader
from mugrpo.tasks.rows import read_rows

_ROLES = ("system", "user", "assistant", "tool", "developer")


class Dataset:
    """The problems of a data set under `options`.

    Raises UsageError, naming file and line, for rows that are no problems.
    """

    def __init__(self, options: DatasetOptions) -> None:
        self.options = options
        self.grader = Grader(options.rewards, options.workers, right_at=options.right_at)

    def train_problems(self) -> Sequence[Problem]:
        return self._split[0]

    def eval_problems(self) -> Sequence[Problem]:
        return self._split[1]

    def prepare(self) -> None:
        self.grader.start()

    def score(self, answers: Iterable[Answer]) -> Iterator[Score]:
        return self.grader.scores(answers)

    def close(self) -> None:
        self.grader.close()

    @cached_property
    def _split(self) -> tuple[list[Problem], list[Problem]]:
        options = self.options
        problems = self._problems(options.data, options.split)
        if options.eval_data is not None or options.eval_split is not None:
            held_out = self._problems(
                options.eval_data or options.data, options.eval_split or options.split
            )
            train = problems
        else:
            cut = int(options.eval_share * 2**64)
            if cut:  # a small data set holds one out at least
                cut = max(cut, 1 + min(map(prompt_hash, problems)))
            held_out = [p for p in problems if prompt_hash(p) < cut]
            train = [p for p in problems if prompt_hash(p) >= cut]
        held_out = sorted(held_out, key=prompt_hash)[: options.eval_problems]
        train = train[: options.train_problems]
        evaluated = {prompt_hash(p) for p in held_out}
        if both := [p for p in train if prompt_hash(p) in evaluated]:
            raise UsageError(
                f"{len(both)} problems are among the held-out ones and among those to train on "
                f"(the first: {both[0].id!r}); choose another task.eval_data or task.eval_split"
            )
        if not train:
            raise UsageError(f"{options.data}: no problem is left to train on; lower eval_share")
        return train, held_out

    def _problems(self, data: str, split: str) -> list[Problem]:
        rows = read_rows(
            data, split=split, subset=self.options.subset, revision=self.options.revision
        )
        problems: dict[str, Problem] = {}
        repeated: list[str] = []
        for place, row in rows:
            problem = self._problem(place, row)
            if problem.id in problems:
                repeated.append(f"{problem.id!r} ({place})")
            problems.setdefault(problem.id, problem)
        if repeated and self.options.duplicates == "error":
            more = f" and {len(repeated) - 3} more" if len(repeated) > 3 else ""
            raise UsageError(
                f"{data} has the same id twice: {', '.join(repeated[:3])}{more}; mend the data, or "
                "take the first of each with --task.duplicates drop"
            )
        return list(problems.values())

    def _problem(self, place: str, row: dict[str, Any]) -> Problem:
        options = self.options
        asked = _prompt(_cell(place, row, options.prompt_column, "prompt_column"), place)
        prompt = self._dressed(asked, place)
        answer = ""
        if options.answer_column is not None:
            answer = self._answer(place, row, options.answer_column)
        if options.id_column is not None:
            identity = _text(_cell(place, row, options.id_column, "id_column"), place)
        else:
            identity = hashlib.sha256(_canonical([prompt, answer])).hexdigest()[:16]
        columns = {name: value for name, value in row.items() if name != options.prompt_column}
        return Problem(identity, prompt, answer, columns)

    def _answer(self, place: str, row: dict[str, Any], column: str) -> str:
        text = _text(_cell(place, row, column, "answer_column"), place)
        if self.options.answer_pattern is None:
            return text
        found = re.search(self.options.answer_pattern, text)
        if found is None or not found[1]:
            raise UsageError(
                f"{place}: task.answer_pattern = {self.options.answer_pattern!r} finds nothing in "
                f"{_shown(text)}"
            )
        return found[1].strip()

    def _dressed(self, asked: str | list[Message], place: str) -> str | tuple[Message, ...]:
        """The prompt with the recipe's template and system prompt."""
        template, system = self.options.prompt_template, self.options.system_prompt
        if isinstance(asked, str):
            text = template.replace("{prompt}", asked)
            if system is None:
                return text
            return ({"role": "system", "content": system}, {"role": "user", "content": text})
        messages = [dict(message) for message in asked]
        users = [message for message in messages if message["role"] == "user"]
        if template != "{prompt}":
            if not users:
                raise UsageError(f"{place}: no user message to put task.prompt_template around")
            users[-1]["content"] = template.replace("{prompt}", users[-1]["content"])
        if system is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
        return tuple(messages)


def prompt_hash(problem: Problem) -> int:
    """64 bits that depend on the prompt alone: what decides the split."""
    return int.from_bytes(hashlib.sha256(_canonical(problem.prompt)).digest()[:8], "big")


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _cell(place: str, row: dict[str, Any], column: str, option: str) -> Any:
    if column not in row:
        near = difflib.get_close_matches(column, row, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? Name it" if near else "name one of them"
        raise UsageError(
            f"{place} has no column {column!r} (it has {', '.join(map(repr, row))}); {hint} with "
            f"--task.{option}"
        )
    return row[column]


def _prompt(value: Any, place: str) -> str | list[Message]:
    """A prompt as it stands in the data: text, or a conversation that a model can answer."""
    if isinstance(value, str):
        if not value.strip():
            raise UsageError(f"{place}: the prompt is empty")
        return value
    if not isinstance(value, list | tuple) or not value:
        raise UsageError(
            f"{place}: the prompt is {_shown(value)}; it must be text, or a list of "
            '{"role": ..., "content": ...}'
        )
    messages: list[Message] = []
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise UsageError(
                f"{place}: message {number} of the prompt is {_shown(message)}; it must be "
                '{"role": ..., "content": text}'
            )
        if message.get("role") not in _ROLES:
            raise UsageError(
                f"{place}: message {number} of the prompt has role {message.get('role')!r}; it "
                f"must be one of {', '.join(_ROLES)}"
            )
        messages.append({"role": message["role"], "content": message["content"]})
    if messages[-1]["role"] == "assistant":
        raise UsageError(f"{place}: the prompt ends with the assistant's turn; nothing is asked")
    return messages


def _text(value: Any, place: str) -> str:
    """An answer or id: text, or a number as it is written."""
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise UsageError(f"{place}: the answer or id is {_shown(value)}; it must be text or a number")


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
