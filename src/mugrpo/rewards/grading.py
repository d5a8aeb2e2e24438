"""Scoring responses by the rewards of a run, in worker processes that can be killed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from itertools import count, groupby
from pathlib import Path
from typing import Any

from mugrpo.config.base import RewardOption, WorkerOptions
from mugrpo.config.rewards import FunctionOptions, MathOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Response, Score, Status
from mugrpo.processes.messages import printable, to_json
from mugrpo.processes.workers import Limits, PoolJob, Worker, WorkerPool

_RIGHT_AT = 1.0  # the value from which the reward that is named as the verdict calls it right
LOOK_AHEAD = 512  # most calls held at once: waiting, in progress, or done but not yet yielded


@dataclass(eq=False)
class Call(PoolJob):
    """Items that are sent to a worker together, and their outcomes, None until known.

    If it fails, each of several items is tried alone. Items that are `together` are compared with
    each other, so those that do not fail alone are then sent together once more.
    """

    items: Sequence[str]  # JSON
    outcomes: list[dict[str, Any] | None]
    together: bool = False
    places: Sequence[int] = ()  # indices of the items' outcomes; () for all
    whole: Call | None = None  # the call that has failed, of an item that is tried alone
    last: bool = False  # whether nothing is tried after it

    def __post_init__(self) -> None:
        self.places = self.places or range(len(self.items))
        self.last = self.last or len(self.items) == 1
        self.deaths = int(not self.last)  # one that is tried item by item gets no second worker

    @property
    def size(self) -> int:
        return len(self.items)

    @property
    def complete(self) -> bool:
        return None not in self.outcomes

    def one_by_one(self) -> list[Call]:
        """Return a call for each item, sharing this call's outcomes."""
        return [
            Call([item], self.outcomes, places=[place], whole=self)
            for place, item in zip(self.places, self.items, strict=True)
        ]

    def rest(self) -> list[Call]:
        """Return a last call of the items that have not failed alone, if all have been tried."""
        if not (self.together and self.complete):
            return []
        pairs = zip(self.places, self.items, strict=True)
        good = [(n, item) for n, item in pairs if "failure" not in (self.outcomes[n] or {})]
        if len(good) < 2:
            return []
        for place, _ in good:
            self.outcomes[place] = None
        return [Call([i for _, i in good], self.outcomes, places=[n for n, _ in good], last=True)]


# Not threads with timeouts: sympy can compute for hours, and only the end of a process stops it.
class Pool(WorkerPool):
    """Workers that judge items by `rewards`.

    Time spent waiting is limited only if one of them waits for a network.
    """

    def __init__(
        self, rewards: Sequence[RewardOption], options: WorkerOptions, *, together: bool = False
    ) -> None:
        self._together = together  # whether the items of a call are compared with each other
        waits = any(reward.waits for reward in rewards)
        super().__init__(
            "mugrpo.rewards.worker",
            {"rewards": [reward.model_dump() for reward in rewards]},
            Limits(options.waiting if waits else 0.0, options.timeout, options.memory_mb),
            options.processes,
            what="reward",
        )
        self._waiting: deque[Call] = deque()

    def run(self, calls: Iterable[Sequence[str]]) -> Iterator[list[dict[str, Any]]]:
        """Yield the outcomes of each call's items, in the order of the calls.

        An outcome is a worker's result, or {"failure": reason, "unfinished": whether time, memory
        or stack ran out}. If a call of several items fails, each item is tried alone. Calls are
        consumed as workers become free. Raises as `WorkerPool._attend`.
        """
        source, exhausted = iter(calls), False
        in_progress: deque[Call] = deque()
        try:
            self._start_missing()
            self._attend(0.0)  # workers may have died since the last run
            while True:
                while not exhausted and self._hungry() and len(in_progress) < LOOK_AHEAD:
                    if (items := next(source, None)) is None:
                        exhausted = True
                    else:
                        call = Call(items, [None] * len(items), self._together)
                        in_progress.append(call)
                        self._waiting.append(call)
                self._dispatch()
                while in_progress and in_progress[0].complete:
                    yield [
                        outcome for outcome in in_progress.popleft().outcomes if outcome is not None
                    ]
                if exhausted and not in_progress:
                    return
                self._attend()
        finally:
            self._waiting.clear()
            for worker in [w for w in self._workers if w.sent]:
                self._workers.remove(worker)
                worker.end()

    def start(self) -> None:
        """Start the workers and wait until one has loaded the rewards. Raises as `run` does."""
        self._start_missing()
        while not any(worker.ready for worker in self._workers):
            self._attend()

    def _hungry(self) -> bool:
        idle = sum(worker.ready and not worker.sent for worker in self._workers)
        return len(self._waiting) < idle

    def _calls_for(self, worker: Worker) -> Iterator[tuple[Call, str]]:
        if self._waiting:
            call = self._waiting.popleft()
            yield call, f"[{','.join(call.items)}]"

    def _hear(self, worker: Worker, job: Call, message: dict[str, Any]) -> None:
        worker.jobs.remove(job)
        if "results" in message:
            self._record(job, message["results"])
        else:
            self._fail(job, message["failure"], message["unfinished"])

    def _fail(self, job: Call, reason: str, unfinished: bool) -> None:
        if job.last:
            failure = {"failure": printable(reason), "unfinished": unfinished}
            self._record(job, [failure] * len(job.items))
        else:
            self._assign(job.one_by_one())

    def _record(self, job: Call, outcomes: Sequence[dict[str, Any]]) -> None:
        for place, outcome in zip(job.places, outcomes, strict=True):
            job.outcomes[place] = outcome
        self._assign(job.whole.rest() if job.whole else ())

    def _assign(self, jobs: Sequence[Call]) -> None:
        self._waiting.extendleft(reversed(jobs))


class Grader:
    """A judge that scores responses by `rewards`, in worker processes started at the first one.

    The reward of a response is the weighted sum of the rewards that are numbers. Its status is that
    of the first verifier. The part "answer" of a score is the answer that this verifier read, and
    "answer/NAME" the one that the verifier NAME read, if there are several.

    A reward that is named as the verdict decides in its place: RIGHT for at least 1, otherwise
    WRONG. If nothing decides, or its value is None, the status is GRADED. It is SKIPPED if no
    reward is a number. Raises UsageError if `rewards` is empty.
    """

    def __init__(self, rewards: tuple[RewardOption, ...], workers: WorkerOptions) -> None:
        if not rewards:
            raise UsageError("no reward is named; name at least one, such as rewards = ['math']")
        self._rewards, self._workers = rewards, workers
        self._weights = {reward.label: reward.weight for reward in rewards}
        named = [reward.label for reward in rewards if reward.decides and not reward.verifies]
        self._verdict = named[0] if named else None
        self.takes_groups = any(isinstance(reward, FunctionOptions) for reward in rewards)
        self._pool = Pool(rewards, workers, together=self.takes_groups)

    def start(self, log: Path | None = None) -> list[str]:
        """Load the rewards now rather than at the first response, to learn early if that fails.

        What they print goes to `log`, or to stderr. Return sentences for the user.
        """
        self._pool.log = log
        self._pool.start()
        said: list[str] = self._pool.greeting["said"]
        return said

    def unreadable(self, references: Iterable[str]) -> dict[str, str]:
        """Return the references that are not equal to themselves, each with the reason.

        Only `math` is asked.
        """
        asked = next((one for one in self._rewards if isinstance(one, MathOptions)), None)
        if asked is None:
            return {}
        reasons = {}
        options = [asked.model_copy(update={"weight": 1.0})]
        distinct = list(dict.fromkeys(references))
        calls = ([to_json({"text": asked.written(r), "answer": r})] for r in distinct)
        alone = len(self._rewards) == 1  # then its workers do: loading sympy takes seconds
        with nullcontext(self._pool) if alone else closing(Pool(options, self._workers)) as pool:
            for reference, [outcome] in zip(distinct, pool.run(calls), strict=True):
                if not all(outcome.get("values", {"none": 0.0}).values()):
                    reasons[reference] = outcome.get("failure", "it is not equal to itself")
        return reasons

    def scores(self, responses: Iterable[Response]) -> Iterator[Score]:
        """Yield the score of each response, in order. They are consumed as workers become free.

        Raises UsageError if a reward cannot be loaded or a column cannot be sent to a function,
        BrokenReward if a function does not return a number or None for each completion.
        """
        for outcomes in self._pool.run(self._calls(responses)):
            yield from map(self._score, outcomes)

    def close(self) -> None:
        """End all workers. A later call of `scores` starts new ones."""
        self._pool.close()

    def _calls(self, responses: Iterable[Response]) -> Iterator[list[str]]:
        """Yield the items of each call: up to `batch_size` of them, but never a part of a group."""

        alone = count()

        def group_of(response: Response) -> Any:
            grouped = self.takes_groups and response.group is not None
            return response.group if grouped else next(alone)

        for _, same in groupby(responses, key=lambda response: response.state):
            call: list[str] = []
            for _, group in groupby(same, key=group_of):
                items = list(map(self._item, group))
                if call and len(call) + len(items) > self._workers.batch_size:
                    yield call
                    call = []
                call += items
                if len(call) >= self._workers.batch_size:
                    yield call
                    call = []
            if call:
                yield call

    def _item(self, response: Response) -> str:
        problem = response.problem
        item: dict[str, Any] = {"text": response.text, "answer": problem.reference}
        item["environment"] = response.environment_reward
        if self.takes_groups:
            item |= {"id": problem.id, "prompt": problem.prompt, "columns": dict(problem.columns)}
            item["ids"] = [int(token) for token in response.ids]
            item["messages"] = response.messages
            item["state"] = response.state and asdict(response.state)
        try:
            return to_json(item)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"a column of problem {problem.id!r} cannot be sent to a reward function: {error}; "
                "leave it out, or store it as text"
            ) from None

    def _score(self, outcome: Mapping[str, Any]) -> Score:
        if "failure" in outcome:
            parts = {"reason": outcome["failure"]}
            if outcome["unfinished"]:
                return Score(Status.UNFINISHED, 0.0, parts)
            return Score(Status.ERROR, None, parts)
        values: dict[str, float | None] = outcome["values"]
        parts = {**values, **outcome["answers"]}
        parts |= {f"extra/{column}": value for column, value in outcome["extra"].items()}
        logged = {f"rewards/{name}/mean": [v] for name, v in values.items() if v is not None}
        logged |= {f"logged/{name}": values for name, values in outcome.get("metrics", {}).items()}
        terms = [self._weights[name] * value for name, value in values.items() if value is not None]
        if not terms:
            reason = {"reason": "no reward is a number"}
            return Score(Status.SKIPPED, None, parts | reason, logged)
        status = Status(outcome.get("status", Status.GRADED))
        if self._verdict is not None:
            value = values[self._verdict]
            known = Status.WRONG if value is None or value < _RIGHT_AT else Status.RIGHT
            status = Status.GRADED if value is None else known
        return Score(status, sum(terms), parts, logged)
