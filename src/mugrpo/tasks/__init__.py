"""The task of a run, built from its options."""

from mugrpo.config.base import TaskOptions, WorkerOptions
from mugrpo.tasks.base import Task


def make_task(options: TaskOptions, workers: WorkerOptions | None = None) -> Task:
    """Return the task that `options` describes. `workers` judge its responses.

    The task reads its data when it is first asked for problems, and raises UsageError then if a row
    is not a valid problem.
    """
    task: Task = options.made(workers or WorkerOptions())
    return task
