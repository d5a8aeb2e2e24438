"""Problems of your own, read from a file or a hub data set. Rewards judge the answers."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

from mugrpo.config.rewards import CodeOptions, NumericOptions
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Answer, Message, Problem, Score
from mugrpo.rewards.code.cases import read_tests
from mugrpo.rewards.functions import NONE_HELD, Held
from mugrpo.rewards.grading import Grader
from mugrpo.rewards.verifiers import has_number
from mugrpo.tasks.patterns import found_by
from mugrpo.tasks.rows import Row, is_local, read_rows

_ROLES = ("system", "user", "assistant", "tool", "developer")


class Dataset:
    """A task with the problems of a data set under `options`. `held` is as in `Grader`.

    The data set is read at the first use. Reading raises UsageError, naming file and line, if a row
    is not a valid problem.
    """

    def __init__(self, options: DatasetOptions, held: Held = NONE_HELD) -> None:
        self.options = options
        self._places: dict[str, str] = {}  # of the rows, by the problem's id
        self.grader = Grader(options.rewards, options.workers, right_at=options.right_at, held=held)

    def train_problems(self) -> Sequence[Problem]:
        return self._split[0]

    def eval_problems(self) -> Sequence[Problem]:
        return self._split[1]

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
        if unreadable := self.grader.unreadable(problem.answer for problem in problems):
            bad = [problem for problem in problems if problem.answer in unreadable]
            answer = bad[0].answer
            raise UsageError(
                f"the rewards cannot use {len(bad)} of {len(problems)} reference answers; the "
                f"first: {_shown(answer)} ({self._places[bad[0].id]}): {unreadable[answer]}; fix "
                "the data, choose another reward, or set task.answer_pattern"
            )
        return said

    def score(self, answers: Iterable[Answer]) -> Iterator[Score]:
        return self.grader.scores(answers)

    def close(self) -> None:
        self.grader.close()

    @cached_property
    def _split(self) -> tuple[list[Problem], list[Problem]]:
        options = self.options
        pairs = self._problems(options.data, options.split)
        if options.eval_data is not None or options.eval_split is not None:
            data, split = options.eval_data or options.data, options.eval_split
            if split is None and not is_local(data):
                split = options.split
            held_out, train = self._problems(data, split), pairs
        else:
            cut = int(options.eval_share * 2**64)
            if cut:  # even a small data set holds out at least one
                cut = max(cut, 1 + min(hash_ for hash_, _ in pairs))
            held_out = [pair for pair in pairs if pair[0] < cut]
            train = [pair for pair in pairs if pair[0] >= cut]
        held_out = sorted(held_out, key=lambda pair: pair[0])[: options.eval_problems]
        train = train[: options.train_problems]
        evaluated = {hash_ for hash_, _ in held_out}
        if overlap := [problem for hash_, problem in train if hash_ in evaluated]:
            raise UsageError(
                f"{len(overlap)} problems are in both the held-out and the training problems "
                f"(the first: {overlap[0].id!r}); choose another task.eval_data or task.eval_split"
            )
        if not train:
            raise UsageError(f"{options.data}: no problem is left to train on; lower eval_share")
        return [problem for _, problem in train], [problem for _, problem in held_out]

    def _problems(self, data: str, split: str | None) -> list[tuple[int, Problem]]:
        """Return (hash of the prompt in its original form, problem) of each row, in order."""
        subset, revision = self.options.subset, self.options.revision
        sources = (self.options.data, self.options.eval_data or self.options.data)
        if is_local(data) and not all(
            map(is_local, sources)
        ):  # these options are for the other source
            subset = revision = None
        rows = read_rows(data, split=split, subset=subset, revision=revision)
        problems: dict[str, tuple[int, Problem]] = {}
        repeated: list[str] = []
        found = self._found(rows)
        for place, row in rows:
            pair = self._problem(place, row, found)
            identity = pair[1].id
            if identity in problems:
                repeated.append(f"{identity!r} ({place})")
            problems.setdefault(identity, pair)
            self._places.setdefault(identity, place)
        if repeated and self.options.duplicates == "error":
            rest = f" and {len(repeated) - 3} more" if len(repeated) > 3 else ""
            kind = "problem" if self.options.id_column is None else "id"
            raise UsageError(
                f"{data} has the same {kind} twice: {', '.join(repeated[:3])}{rest}; fix the "
                "data, or keep the first of each with --task.duplicates drop"
            )
        return list(problems.values())

    def _found(self, rows: Sequence[Row]) -> dict[str, str | None]:
        """Return what task.answer_pattern finds in each reference answer, or None for nothing."""
        pattern, column = self.options.answer_pattern, self.options.answer_column
        if pattern is None or column is None:
            return {}
        cells = (row.get(column) for _, row in rows)
        return found_by(pattern, sorted({str(cell) for cell in cells if cell is not None}))

    def _problem(
        self, place: str, row: dict[str, Any], found: Mapping[str, str | None]
    ) -> tuple[int, Problem]:
        options = self.options
        prompt = prompt_of(_cell(place, row, options.prompt_column, "prompt_column"), place)
        answer = ""
        if options.answer_column is not None:
            answer = self._answer(place, row, options.answer_column, found)
        if options.id_column is not None:
            cell = _cell(place, row, options.id_column, "id_column")
            identity = _text(cell, place, options.id_column)
        else:
            identity = hashlib.sha256(canonical([prompt, answer])).hexdigest()[:16]
        columns = {name: value for name, value in row.items() if name != options.prompt_column}
        problem = Problem(identity, self._with_template(prompt, place), answer, columns)
        return stable_hash(prompt), problem

    def _answer(
        self, place: str, row: dict[str, Any], column: str, found: Mapping[str, str | None]
    ) -> str:
        cell = _cell(place, row, column, "answer_column")
        code = any(isinstance(reward, CodeOptions) for reward in self.options.rewards)
        if code and isinstance(cell, list | dict):
            cell = json.dumps(cell)
        text = _text(cell, place, column)
        if self.options.answer_pattern is not None:
            if (answer := found[text]) is None:
                raise UsageError(
                    f"{place}: task.answer_pattern = {self.options.answer_pattern!r} matches "
                    f"nothing in {_shown(text)}"
                )
            text = answer
        numeric = any(isinstance(reward, NumericOptions) for reward in self.options.rewards)
        if numeric and not has_number(text):
            raise UsageError(
                f"{place}: column {column!r} is {_shown(text)}, which the reward numeric cannot "
                "compare with; choose another reward, or set task.answer_pattern"
            )
        if code:
            try:
                read_tests(text)
            except ValueError as error:
                raise UsageError(
                    f"{place}: column {column!r} has no tests for the reward code: {error}"
                ) from None
        return text

    def _with_template(self, prompt: str | list[Message], place: str) -> str | tuple[Message, ...]:
        """Return `prompt` with the run's prompt template and system prompt applied."""
        template, system = self.options.prompt_template, self.options.system_prompt
        if isinstance(prompt, str):
            text = template.replace("{prompt}", prompt)
            if system is None:
                return text
            return ({"role": "system", "content": system}, {"role": "user", "content": text})
        messages = [dict(message) for message in prompt]
        users = [message for message in messages if message["role"] == "user"]
        if template != "{prompt}":
            if not users:
                raise UsageError(
                    f"{place}: the prompt has no user message to apply task.prompt_template to"
                )
            users[-1]["content"] = template.replace("{prompt}", users[-1]["content"])
        if system is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
        return tuple(messages)


def stable_hash(prompt: str | list[Message]) -> int:
    """Return a 64-bit hash of the prompt in its original form, which decides the split."""
    return int.from_bytes(hashlib.sha256(canonical(prompt)).digest()[:8], "big")


def canonical(value: Any) -> bytes:
    """Return a JSON value as bytes that do not depend on the order of its keys."""
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


def prompt_of(value: Any, place: str) -> str | list[Message]:
    """Return a prompt from the data: text, or a conversation that a model can answer.

    Raises UsageError, naming `place`, if it is anything else.
    """
    if isinstance(value, str):
        if not value.strip():
            raise UsageError(f"{place}: the prompt is empty")
        return _tokenizable(value, place)
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
        messages.append(
            {"role": message["role"], "content": _tokenizable(message["content"], place)}
        )
    if messages[-1]["role"] not in ("user", "tool"):
        last = messages[-1]["role"]
        raise UsageError(
            f"{place}: the prompt ends with the turn of the {last}; its last turn must be the "
            "user's or a tool's"
        )
    return messages


def _tokenizable(text: str, place: str) -> str:
    """Return `text`. Raises UsageError for half a surrogate pair, which no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{place}: character {error.start} is half a surrogate pair "
            f"({text[error.start]!r}), which is not text; fix the data"
        ) from None
    return text


def _text(value: Any, place: str, column: str) -> str:
    """Return an answer or id as text. Raises UsageError if it is neither text nor a number."""
    if isinstance(value, str) and value.strip():
        return _tokenizable(value, place)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float | Decimal) and math.isfinite(value):
        return str(value)
    raise UsageError(
        f"{place}: column {column!r} is {_shown(value)}; it must be text or a finite number"
    )


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
