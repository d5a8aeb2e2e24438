"""Problems of your own, read from a file or a hub data set. Rewards judge the answers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mugrpo.config.base import RewardOption
from mugrpo.config.rewards import ExactOptions, MathOptions, NumericOptions, PlainOptions, deciding
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Answer, Message, Problem, Score
from mugrpo.rewards.grading import Grader
from mugrpo.rewards.verifiers import has_number
from mugrpo.tasks.cells import cell, literal, prompt_of, shown, text_of
from mugrpo.tasks.rows import Row, is_local, read_rows


def found_by(pattern: str, texts: Sequence[str]) -> dict[str, str | None]:
    """Return what the first group of `pattern` matches in each text, or None if nothing."""
    matches = {text: re.search(pattern, text) for text in texts}
    return {text: m[1].strip() if m and m[1] else None for text, m in matches.items()}


_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
# Marks of a text that has the answer somewhere inside it.
_MARK = re.compile(r"####|</?(?:answer|think)>|\banswer\b[*\s]*(?:is\b|:)", re.IGNORECASE)
# What may take the answer out. The first one that finds something is suggested.
_PATTERNS = (
    "#### (.+)",
    "####\\s*(.+)",
    "(?s)<answer>(.+?)</answer>",
    "(?s)</think>(.+)",
    "(?i)answer[*\\s]*(?:is|:)[*:\\s]*(.+?)\\.?\\s*$",
    "(?im)answer[*\\s]*(?:is|:)[*:\\s]*(.+?)\\.?\\s*$",
)
_ENTRIES = ("answer", "final_answer", "ground_truth", "target", "solution", "value", "label")

_VERB = re.compile(
    r"\b(?:is|are|was|were|has|have|had|equals|gives|costs|needs|will|would|there|since|because|"
    r"therefore|thus|hence|so)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_MANY = 12  # words, more than the answers of any benchmark here have


def references_of(rows: Sequence[Row], options: DatasetOptions) -> list[str]:
    """Return the reference answer of each row, "" for all without an answer column.

    Raises UsageError, naming the row, if one is no text, or if a reward cannot compare with it.
    """
    column, pattern = options.answer_column, options.answer_pattern
    if column is None:
        return [""] * len(rows)
    texts = []
    for place, row in rows:
        value = cell(place, row, column, "answer_column")
        for reward in options.rewards:
            value = reward.reference(value, row)
        texts.append(text_of(value, place, column, "answer_column"))
    if pattern is not None:
        found = found_by(pattern, sorted(set(texts)))
        for (place, _), text in zip(rows, texts, strict=True):
            if found[text] is None:
                raise UsageError(
                    f"{place}: task.answer_pattern = {pattern!r} matches nothing in {shown(text)}"
                )
        texts = [found[text] or "" for text in texts]
    for (place, _), text in zip(rows, texts, strict=True):
        if fault := next(_faults(text, column, options), None):
            raise UsageError(f"{place}: column {column!r} {fault}")
    return texts


def sentences(references: Sequence[str], rewards: Sequence[RewardOption]) -> list[str]:
    """Return the references that `math` or `plain` compares and that read like whole sentences.

    Only a response with the same words matches one. That may be what the data wants, of a few.
    """
    if not any(isinstance(one, MathOptions | PlainOptions) for one in deciding(rewards)):
        return []
    return [text for text in references if _is_sentence(text)]


def _faults(text: str, column: str, options: DatasetOptions) -> Iterator[str]:
    """Yield why a reward cannot compare with a reference, and what to do."""
    if any(isinstance(one, NumericOptions) for one in options.rewards) and not has_number(text):
        yield (
            f"is {shown(text)}, which the reward numeric cannot compare with; choose another "
            "reward, or set task.answer_pattern"
        )
    yield from filter(None, (one.fault(text) for one in options.rewards))
    if named := next((r.name for r in deciding(options.rewards) if _unmatched(text, r)), None):
        yield (
            f"is {shown(text)}, which no response can match by the reward {named}; take the answer "
            f"out of it with {_way_out(text, column)}"
        )


def _unmatched(text: str, reward: RewardOption) -> bool:
    """Return whether a reference holds more than the answer that `reward` compares with it.

    `numeric` compares only references that are one number (`has_number`), and `regex` tells by its
    own pattern (`Grader.unreadable`).
    """
    if isinstance(reward, ExactOptions):  # a model may be asked for "Answer: 4", or for JSON
        return "\n" in text.strip() and _MARK.search(text) is not None
    if not isinstance(reward, MathOptions | PlainOptions) or _BOX.search(text):
        return False
    return _MARK.search(text) is not None or _is_data(literal(text))


def _is_data(value: object) -> bool:
    """Return whether JSON is a table, or a list with text: [1, 2] is an interval or a list."""
    entries = value if isinstance(value, list) else []
    return isinstance(value, dict) or any(isinstance(one, str | dict) for one in entries)


def _way_out(text: str, column: str) -> str:
    value = literal(text)
    if isinstance(value, dict | list) and value:
        names = [name for name in _ENTRIES if name in value] or list(value)
        return f"--task.answer_column {column}.{names[0] if isinstance(value, dict) else 0}"
    for pattern in _PATTERNS:
        if (found := re.search(pattern, text)) and found[1].strip():
            return f"--task.answer_pattern '{pattern}'"  # quoted as a shell and TOML read it
    return "task.answer_pattern, a regular expression whose first group is the answer"


def _is_sentence(text: str) -> bool:
    if _BOX.search(text):
        return False
    words = len(_WORD.findall(text))
    if words >= _MANY:
        return True
    return words >= 2 and any(map(str.isdigit, text)) and _VERB.search(text) is not None


class Dataset:
    """A task with the problems of a data set under `options`.

    The data set is read at the first use. Reading raises UsageError, naming file and line, if a row
    is not a valid problem.
    """

    def __init__(self, options: DatasetOptions) -> None:
        self.options = options
        self._places: dict[str, str] = {}  # of the rows, by the problem's id
        self.grader = Grader(options.rewards, options.workers, right_at=options.right_at)

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
                f"first: {shown(answer)} ({self._places[bad[0].id]}): {unreadable[answer]}; fix "
                "the data, choose another reward, or set task.answer_pattern"
            )
        return [*said, *self._notice(problems)]

    def _notice(self, problems: Sequence[Problem]) -> Iterator[str]:
        """Yield a sentence if references read like sentences. Raises UsageError if most do."""
        prose = sentences([problem.answer for problem in problems], self.options.rewards)
        if prose:
            text = (
                f"{len(prose)} of {len(problems)} reference answers read like whole sentences, "
                f"which only the same words match (such as {shown(prose[0])})"
            )
            if 2 * len(prose) > len(problems):
                raise UsageError(f"{text}; take the answers out with task.answer_pattern")
            yield f"warning: {text}"

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
        column = self.options.prompt_column
        prompts = [
            prompt_of(cell(place, row, column, "prompt_column"), place) for place, row in rows
        ]
        answers = references_of(rows, self.options)
        for (place, row), prompt, answer in zip(rows, prompts, answers, strict=True):
            pair = stable_hash(prompt), self._problem(place, row, prompt, answer)
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

    def _problem(
        self, place: str, row: dict[str, Any], prompt: str | list[Message], answer: str
    ) -> Problem:
        options = self.options
        if options.id_column is not None:
            value = cell(place, row, options.id_column, "id_column")
            identity = text_of(value, place, options.id_column, "id_column")
        else:
            identity = hashlib.sha256(canonical([prompt, answer])).hexdigest()[:16]
        columns = {name: value for name, value in row.items() if name != options.prompt_column}
        return Problem(identity, self._with_template(prompt, place), answer, columns)

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
