"""A local file in the place of a suite's data set on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.evals.options import Suite
from mugrpo.tasks.cells import entry
from mugrpo.tasks.rows import is_local, read_rows


def with_data(suite: Suite, file: str) -> Suite:
    """Return `suite` with the problems in the local `file` instead of its own data set.

    Each column is the suite's own if the file has it. Otherwise the prompt is in `problem`,
    `prompt` or `question`, the answer in `answer`, and the id in `id`; without that, the id is a
    hash. Raises UsageError if the file does not exist, cannot be read, is empty or lacks a column.
    """
    if not is_local(file):
        raise UsageError(f"there is no data file {file} to stand in for the suite {suite.name}")
    task = suite.options.task
    columns = read_rows(file)[0][1]

    def column(what: str, own: str | None, *usual: str) -> str | None:
        """Return the suite's own column if the file has it, or the first of the usual ones."""
        if found := next((name for name in (own, *usual) if name and _has(columns, name)), None):
            return found
        if what and own:
            raise UsageError(
                f"{file} has the columns {', '.join(map(repr, columns))}; the suite {suite.name} "
                f"needs {what} in {' or '.join(map(repr, dict.fromkeys((own, *usual))))}"
            )
        return None

    changed = {
        "data": file,
        "split": None,
        "subset": None,
        "revision": None,
        "prompt_column": column("prompts", task.prompt_column, "problem", "prompt", "question"),
        "answer_column": task.answer_column and column("answers", task.answer_column, "answer"),
        "id_column": column("", task.id_column, "id"),
    }
    return suite.over({"task": {**task.model_dump(), **changed}})


def _has(row: Mapping[str, Any], name: str) -> bool:
    try:
        entry(row, name)
    except KeyError:
        return False
    return True
