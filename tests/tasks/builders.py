"""Rows of a data set, and the problems that are made from them."""

from typing import Any

from mugrpo.config.base import WorkerOptions
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.records import Problem
from mugrpo.tasks.dataset import Dataset
from tests import cases

Row = dict[str, Any]
Sides = tuple[list[Problem], list[Problem]]


def task(data: str, **options: Any) -> Dataset:
    return Dataset(
        DatasetOptions(data=data, **{"rewards": "exact", **options}), WorkerOptions(count=1)
    )


def sides(data: str, **options: Any) -> Sides:
    """Return the training and the held-out problems."""
    data_set = task(data, **options)
    return list(data_set.train_problems()), list(data_set.eval_problems())


def all_problems(data: str, **options: Any) -> list[Problem]:
    """Return every problem, in the order of the data."""
    return sides(data, eval_share=0.0, **options)[0]


def refusal(data: str, **options: Any) -> str:
    """Return the one line that refuses `data`."""
    return cases.refusal(sides, data, **{"eval_share": 0.0, **options})


def row(prompt: Any, answer: Any = "1", **more: Any) -> Row:
    return {"prompt": prompt, "answer": answer, **more}


def chat(*turns: str) -> list[Row]:
    """Return messages of alternating roles, the user's first."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
