"""The environments of a run: in worker processes that can be killed, many rollouts in each.

A worker gets several calls at once, and answers one after the other. If it hangs, dies or takes too
much memory, the rollout of the call fails. The others in it begin again in another worker, which
repeats their calls and must give the same replies: an environment that does not depend on chance
beyond its seeds loses nothing.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mugrpo.config.base import WorkerOptions
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import asks_environment
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Message, Problem
from mugrpo.extensions.turns import EnvironmentOptions
from mugrpo.extensions.turns.base import Reply
from mugrpo.processes.messages import to_json
from mugrpo.processes.peer import TICK, PeerLost
from mugrpo.processes.workers import Limits, PoolJob, Worker, WorkerPool

# What is sent at once, less than a socket holds: a worker that sends does not read.
_CALLS, _BYTES = 32, 1 << 15


@dataclass(eq=False)
class Episode(PoolJob):
    """A rollout that goes on, with all that was said in it."""

    number: int
    seed: int
    calls: list[str] = field(default_factory=list)  # JSON, in order
    replies: list[Any] = field(default_factory=list)  # to the first of `calls`
    answered: int = 0  # calls that its worker has answered, repeated ones too
    last: Reply | None = None  # to whatever is said next


# Not a process for each rollout: hundreds go on at once, and each would import the environment.
class EnvironmentPool(WorkerPool):
    """The environments that `options` describe, in worker processes each known by its
    rollout's number.

    `replies` raises BrokenReward if an environment breaks its contract, and UsageError if it cannot
    be loaded. What they print goes to `log`, or to stderr. With `own_reward`, the
    environment has to give a reward.
    """

    def __init__(
        self,
        options: EnvironmentOptions,
        workers: WorkerOptions,
        *,
        own_reward: bool = False,
        log: Path | None = None,
    ) -> None:
        super().__init__(
            "mugrpo.extensions.turns.worker",
            {"environment": options.model_dump(), "own_reward": own_reward},
            # No limit on computing: threads that other rollouts left would count, too.
            Limits(workers.waiting, 0.0, workers.memory_mb),
            workers.processes,
            what="environment",
            log=log,
        )
        self._rollouts: dict[int, Episode] = {}
        self._open: set[int] = set()  # rollouts whose callers wait for replies
        self._replies: list[tuple[int, Reply]] = []

    @cached_property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The JSON schemas of the tools, from a worker of their own, as writing them takes torch.

        Raises UsageError if the environment cannot be loaded or a tool cannot be described.
        """
        worker = self._new_worker(describe=True)
        try:
            while (message := worker.hear()) is None:
                pass
        except PeerLost as lost:
            raise worker.never_ready(lost) from None
        finally:
            worker.end()
        if "refused" in message:
            raise UsageError(message["refused"])
        tools: Sequence[Mapping[str, Any]] = message["tools"]
        return tools

    def begin(self, rollout: int, seed: int, row: Mapping[str, Any]) -> None:
        """Reset an environment for `rollout` and the columns of its problem. It will reply."""
        assert rollout not in self._rollouts, f"rollout {rollout} has begun already"
        self._start_missing()
        began = self._rollouts[rollout] = self._episode(rollout, seed, row)
        self._assign([began])
        try:
            self._call(began, {"call": "begin", "row": dict(row)})
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"a problem's columns cannot be sent to an environment: {error}; leave the column "
                "out, or store it as text"
            ) from None

    def _episode(self, rollout: int, seed: int, _: Mapping[str, Any]) -> Episode:
        return Episode(rollout, seed)

    def step(self, rollout: int, message: Message) -> None:
        """Give the environment a whole message of the model, that of the last turn, too."""
        self._call(self._rollouts[rollout], {"call": "step", "message": dict(message)})

    def end(self, rollout: int) -> None:
        """Tell the environment that the model says no more. It will reply, with `done`."""
        self._call(self._rollouts[rollout], {"call": "end"})

    def replies(self, seconds: float) -> Sequence[tuple[int, Reply]]:
        """Return the replies that have come, as soon as there is one, after at most `seconds`."""
        deadline = time.monotonic() + seconds
        while not self._replies and self._open:
            patience = deadline - time.monotonic()
            self._attend(min(TICK, max(0.0, patience)))
            if patience <= 0:
                break
        replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        """End all workers, and forget all rollouts."""
        super().close()
        self._rollouts, self._open, self._replies = {}, set(), []

    def _call(self, episode: Episode, call: dict[str, Any]) -> None:
        episode.calls.append(to_json(call))
        self._open.add(episode.number)
        if episode.last is not None:
            self._reply(episode, episode.last)
        else:
            self._dispatch()

    def _calls_for(self, worker: Worker) -> Iterator[tuple[Episode, str]]:
        size = 0
        for episode in [one for one in worker.jobs if one.answered < len(one.calls)][:_CALLS]:
            place = {"rollout": episode.number, "seed": episode.seed, "number": episode.answered}
            text = f"[{to_json(place)}, {episode.calls[episode.answered]}]"
            size += len(text)
            if worker.sent and size > _BYTES:
                return
            yield episode, text

    def _hear(self, worker: Worker, job: Episode, message: dict[str, Any]) -> None:
        """Pass on a reply, or compare it with the one that it repeats."""
        told = message["reply"]
        worker.jobs.remove(job)
        if job.answered == len(job.replies):
            job.replies.append(told)
            self._reply(job, Reply(**told))
        elif told != job.replies[job.answered]:
            self._fail(
                job,
                "the environment was lost with its worker, and replied differently when its calls "
                "were repeated",
                False,
            )
            return
        job.answered += 1
        if not told["done"]:
            worker.jobs.append(job)  # behind those that have waited longer

    def _reply(self, episode: Episode, reply: Reply) -> None:
        self._replies.append((episode.number, reply))
        self._open.discard(episode.number)
        if reply.done:
            del self._rollouts[episode.number]

    def _fail(self, job: Episode, reason: str, unfinished: bool) -> None:
        self._finish(job, Reply(done=True, failure=reason, unfinished=unfinished))

    def _finish(self, job: Episode, reply: Reply) -> None:
        """End a rollout: now if its caller waits for a reply, else at the next call."""
        job.last = reply
        if job.number in self._open:
            self._reply(job, reply)

    def _assign(self, jobs: Sequence[Episode]) -> None:
        """Give rollouts to the workers that have the fewest, from their first calls."""
        for episode in jobs:
            episode.answered = 0
            min(self._workers, key=lambda one: len(one.jobs)).jobs.append(episode)


def environments_of(config: RunConfig, *, log: Path | None = None) -> EnvironmentPool:
    """Return the environments of a run's config, which must name some.

    They are loaded when they are first asked for anything, and raise UsageError then if that fails,
    or if the run asks for their own reward and they give none. What they print goes to `log`,
    or to stderr.
    """
    from mugrpo.extensions.turns.verifiers.pool import VerifiersEnvironments  # a pool, too

    options = config.environment
    assert isinstance(options, EnvironmentOptions) and options.given, "no environment is named"
    pool = VerifiersEnvironments if options.of_verifiers else EnvironmentPool
    return pool(options, config.workers, own_reward=asks_environment(config.task), log=log)


def tools_of(config: RunConfig) -> Sequence[Mapping[str, Any]]:
    """Return the schemas of the tools of a run's environment."""
    environments = environments_of(config)
    try:
        return environments.tools
    finally:
        environments.close()


def row_of(problem: Problem) -> dict[str, Any]:
    """Return what `reset` gets of a problem: the columns, "prompt" and, if it has one, "answer"."""
    prompt = problem.prompt if isinstance(problem.prompt, str) else list(problem.prompt)
    answer = {"answer": problem.reference} if problem.reference else {}
    return {**answer, **problem.columns, "prompt": prompt}
