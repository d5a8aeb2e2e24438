"""A local file in the place of a suite's data set on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.evals.options import Suite
from mugrpo.tasks.cells import entry
from mugrpo.tasks.rows import is_local, read_rows

# The columns to look for, in this order, if the file lacks the suite's own.
_PROMPTS, _ANSWERS, _IDS = ("problem", "prompt", "question"), ("answer",), ("id",)


def with_data(suite: Suite, file: str) -> Suite:
    """Return `suite` with the problems in the local `file` instead of its own data set.

    Each column is the suite's own if the file has it. Otherwise the prompt is in `problem`,
    `prompt` or `question`, the answer in `answer`, and the id in `id`; without that, the id is a
    hash. Raises UsageError if the file does not exist, cannot be read, is empty or lacks a column.
    """
    if not is_local(file):
        raise UsageError(f"there is no data file {file} to stand in for the suite {suite.name}")
    task, rows = suite.options.task, read_rows(file)
    columns = rows[0][1]
    prompt = _column(columns, (task.prompt_column, *_PROMPTS))
    answers = () if task.answer_column is None else (task.answer_column, *_ANSWERS)
    answer = _column(columns, answers)
    if prompt is None or (answers and answer is None):
        wanted = f"prompts in {_either((task.prompt_column, *_PROMPTS))}"
        wanted += f", and reference answers in {_either(answers)}" if answers else ""
        raise UsageError(
            f"{file} has the columns {', '.join(map(repr, columns))}; the suite {suite.name} needs "
            f"{wanted}; rename the columns"
        )
    ids = _IDS if task.id_column is None else (task.id_column, *_IDS)
    changed = {
        "data": file,
        "split": None,
        "subset": None,
        "revision": None,
        "prompt_column": prompt,
        "answer_column": answer,
        "id_column": _column(columns, ids),
    }
    return suite.over({"task": {**task.model_dump(), **changed}})


def _column(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """Return the first of `names` that `row` has, as a column or by a dotted path, or None."""
    return next((name for name in names if _has(row, name)), None)


def _has(row: Mapping[str, Any], name: str) -> bool:
    try:
        entry(row, name)
    except KeyError:
        return False
    return True


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(map(repr, dict.fromkeys(names)))
