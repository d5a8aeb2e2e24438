"""Reference answers of a data set, and those among them that no response can match."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mugrpo.config.base import RewardOption
from mugrpo.config.rewards import (
    ExactOptions,
    MathOptions,
    NumericOptions,
    PlainOptions,
    deciding,
)
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.errors import UsageError
from mugrpo.rewards.verifiers import has_number
from mugrpo.tasks.cells import cell, literal, shown, text_of
from mugrpo.tasks.patterns import found_by
from mugrpo.tasks.rows import Row

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
