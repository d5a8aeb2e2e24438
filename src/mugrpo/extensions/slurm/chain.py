"""The chain of a run's jobs: for each stage an array that generates, one that scores, and updates.

A job that is queued already keeps its place, unless it waits for one that is over: then it would
never start, and is submitted again behind the new one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from mugrpo.extensions.slurm.queue import Queued, Task
from mugrpo.extensions.slurm.scripts import job_name
from mugrpo.extensions.slurm.settings import SlurmOptions


class Work(NamedTuple):
    """What a stage lacks: the shards to generate and those to score. Its updates come after."""

    stage: int
    lacking: Collection[int]
    unscored: Collection[int]


class _Place(NamedTuple):
    """Where a task is: in which job, and whether that was submitted just now."""

    job: str
    new: bool


class _After(NamedTuple):
    """What a task waits for: a dependency of sbatch's, and whether that was submitted just now."""

    text: str = ""
    new: bool = False


class Chain:
    """Submits what is not queued. `submit` takes a job and the words of sbatch, and returns an id;
    `cancel` takes an id."""

    def __init__(
        self,
        run: Path,
        options: SlurmOptions,
        queue: Mapping[Task, Queued],
        submit: Callable[[list[Task], list[str]], str],
        cancel: Callable[[str], None],
        *,
        beside: bool,
    ) -> None:
        self._run, self._options, self._queue = run, options, queue
        self._submit, self._cancel, self._beside = submit, cancel, beside
        self._last = _After()  # the updates of the stage before

    def add(self, work: Work) -> None:
        """Submit what a stage lacks. Stages come in order."""
        parts, stage = self._options.parts, work.stage
        generating, scoring = ({n % parts for n in shards} for shards in work[1:])
        made = self._placed(
            {Task("generate", stage, part): self._last for part in sorted(generating)}
        )
        waits = {task.part: _After(f"aftercorr:{p.job}", p.new) for task, p in made.items()}
        scored = self._placed(
            {Task("score", stage, part): waits.get(part, _After()) for part in sorted(scoring)}
        )
        before = self._last
        if scored and not self._beside:
            shards, new = _all_of(scored)
            text = shards if made else ",".join(filter(None, (before.text, shards)))
            before = _After(text, new or before.new)
        self._last = _all_of(self._placed({Task("optimize", stage): before}))

    def _placed(self, wanted: Mapping[Task, _After]) -> dict[Task, _Place]:
        """Submit the tasks of a phase that are not queued. Return the job of each task."""
        places: dict[Task, _Place] = {}
        behind: dict[str, list[Task]] = {}  # an array for each dependency
        for task, after in wanted.items():
            old = self._queue.get(task)
            if old and not (after.new and old.depends):
                places[task] = _Place(old.job, False)
                continue
            if old:
                self._cancel(old.job if task.part is None else f"{old.job}_{task.part}")
            behind.setdefault(after.text, []).append(task)
        for text, tasks in behind.items():
            job = self._submit(tasks, self._words(tasks, text))
            places |= dict.fromkeys(tasks, _Place(job, True))
        return places

    def _words(self, tasks: list[Task], dependency: str) -> list[str]:
        """Return the words of sbatch for an array of `tasks`, or for a job that is none."""
        phase, stage, part = tasks[0]
        words = [f"--job-name={job_name(self._run, phase, stage)}"]
        if part is not None:
            limit = f"%{self._options.at_once}" if self._options.at_once else ""
            words.append(f"--array={ranges(task.part or 0 for task in tasks)}{limit}")
        words += [f"--dependency={dependency}"] if dependency else []
        return [*words, str(self._run / "slurm" / f"{phase}.sh"), str(stage)]


def _all_of(places: Mapping[Task, _Place]) -> _After:
    """Return what waits until all tasks have succeeded.

    Of an array that was queued before, other tasks may have failed, so its tasks are named.
    """
    whole = [
        place.job if place.new or task.part is None else f"{place.job}_{task.part}"
        for task, place in places.items()
    ]
    new = any(place.new for place in places.values())
    return _After("afterok:" + ":".join(dict.fromkeys(whole)), new)


def ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as sbatch writes them: "0-2,5"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ",".join(str(n[0]) if len(n) == 1 else f"{n[0]}-{n[-1]}" for n in found)
