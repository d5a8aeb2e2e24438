"""Environments in worker processes that can be killed, many rollouts in each.

A worker gets several calls at once, and answers one after the other. If it hangs, dies or takes too
much memory, the rollout of the call fails. The others in it begin again in another worker, which
repeats their calls and must give the same replies: an environment that does not depend on chance
beyond its seeds loses nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mugrpo.config.environment import EnvironmentOptions
from mugrpo.disk.errors import BrokenReward, RunStopped, UsageError
from mugrpo.environments.base import Reply
from mugrpo.processes.messages import to_json
from mugrpo.processes.peer import TICK, PeerLost, audible
from mugrpo.processes.workers import STARTING_SECONDS, Limits, Worker

# What is sent at once, less than a socket holds: a worker that sends does not read.
_CALLS, _BYTES = 32, 1 << 15
_DEATHS = 2  # workers that may die in a rollout's calls before it fails: once may be chance


@dataclass(eq=False)
class _Rollout:
    """A rollout that goes on, with all that was said in it."""

    number: int
    seed: int
    calls: list[str] = field(default_factory=list)  # JSON, in order
    replies: list[Any] = field(default_factory=list)  # to the first of `calls`
    answered: int = 0  # calls that its worker has answered, repeated ones too
    deaths: int = 0
    failed: Reply | None = None


class _Worker(Worker):
    """A process with the environments of `rollouts`.

    Those in `waiting` have calls to be sent. It answers the calls of those in `sent`, in order.
    """

    rollouts: dict[int, _Rollout]
    waiting: deque[_Rollout]
    sent: deque[_Rollout]


class EnvironmentPool:
    """The environments that `options` describe, in worker processes (see `base.Environments`).

    What they print goes to `log`, up to a limit, or to stderr. `own_reward` says whether the
    environment has to give a reward.
    """

    def __init__(
        self, options: EnvironmentOptions, *, own_reward: bool = False, log: Path | None = None
    ) -> None:
        self._options, self._log = options, log
        self._setup = {"environment": options.revealed("python"), "own_reward": own_reward}
        self._limits = Limits(options.timeout, 0.0, options.memory_mb)
        self._workers: list[_Worker] = []
        self._proven = False  # whether any worker has ever been ready
        self._rollouts: dict[int, _Rollout] = {}
        self._open: set[int] = set()  # rollouts whose callers wait for replies
        self._replies: list[tuple[int, Reply]] = []

    @cached_property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The schemas of the tools, from a worker of their own, as writing them takes torch.

        Raises UsageError if the environment cannot be loaded or a tool cannot be described.
        """
        worker = self._new_worker(describe=True)
        try:
            while (message := worker.hear()) is None:
                pass
        except PeerLost as lost:
            raise worker.never_ready(lost, self._proven) from None
        finally:
            worker.end()
        if "refused" in message:
            raise UsageError(message["refused"])
        tools: Sequence[Mapping[str, Any]] = message["tools"]
        return tools

    def begin(self, rollout: int, seed: int, row: Mapping[str, Any]) -> None:
        assert rollout not in self._rollouts, f"rollout {rollout} has begun already"
        self._start_missing()
        began = self._rollouts[rollout] = _Rollout(rollout, seed)
        self._assign(began)
        try:
            self._call(began, {"call": "begin", "row": dict(row)})
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"a problem's columns cannot be sent to an environment: {error}; leave the column "
                "out, or store it as text"
            ) from None

    def step(self, rollout: int, message: Mapping[str, Any]) -> None:
        self._call(self._rollouts[rollout], {"call": "step", "message": dict(message)})

    def end(self, rollout: int) -> None:
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
        while self._workers:
            self._workers.pop().end()
        self._rollouts, self._open, self._replies = {}, set(), []

    def _call(self, rollout: _Rollout, call: dict[str, Any]) -> None:
        """Put a call in the queue of the rollout's worker."""
        rollout.calls.append(to_json(call))
        self._open.add(rollout.number)
        if rollout.failed is not None:
            self._reply(rollout, rollout.failed)
            return
        worker = self._worker_of(rollout)
        if rollout.answered == len(rollout.calls) - 1:  # no earlier call is to be repeated
            worker.waiting.append(rollout)
            self._dispatch()

    def _worker_of(self, rollout: _Rollout) -> _Worker:
        return next(worker for worker in self._workers if rollout.number in worker.rollouts)

    def _start_missing(self) -> None:
        while len(self._workers) < self._options.processes:
            self._workers.append(self._new_worker(describe=False))

    def _new_worker(self, describe: bool) -> _Worker:
        worker = _Worker(
            "mugrpo.environments.worker",
            {**self._setup, "describe": describe},
            self._limits,
            kind="environment worker",
            starting=STARTING_SECONDS,
            log=self._log,
        )
        worker.rollouts, worker.waiting, worker.sent = {}, deque(), deque()
        return worker

    def _assign(self, rollout: _Rollout) -> None:
        """Give a rollout to the worker that has the fewest."""
        worker = min(self._workers, key=lambda one: len(one.rollouts))
        worker.rollouts[rollout.number] = rollout

    def _dispatch(self) -> None:
        """Send what is waiting to each worker that has answered all that it got."""
        for worker in [w for w in self._workers if w.ready and not w.sent]:
            size = 0
            try:
                while worker.waiting and len(worker.sent) < _CALLS:
                    text = self._next_call(worker.waiting[0])
                    size += len(text)
                    if worker.sent and size > _BYTES:
                        break
                    worker.sent.append(worker.waiting.popleft())
                    worker.silence = self._options.timeout
                    worker.send(text)
            except PeerLost as lost:
                self._lose(worker, lost)

    def _next_call(self, rollout: _Rollout) -> str:
        place = {"rollout": rollout.number, "seed": rollout.seed, "number": rollout.answered}
        return f"[{to_json(place)}, {rollout.calls[rollout.answered]}]"

    def _attend(self, patience: float) -> None:
        """Wait until workers answer, end or reach their deadlines, and handle each of these events.

        Wait for at most `patience` seconds.
        """
        self._dispatch()
        for worker in audible(self._workers, patience):
            try:
                while worker in self._workers and (message := worker.hear(0.0)) is not None:
                    self._take(worker, message)
            except PeerLost as lost:
                self._lose(worker, lost)
        self._dispatch()

    def _take(self, worker: _Worker, message: Any) -> None:
        """Handle a worker's message. Raises PeerLost if it has another form."""
        match message:
            case {"refused": str(reason)}:
                self.close()
                raise (RunStopped if self._proven else UsageError)(reason)
            case {"broken": str(reason)}:
                self.close()
                raise BrokenReward(f"{reason}; fix it (--force accepts the changed environment)")
            case {"ready": True}:
                worker.ready = self._proven = True
                worker.silence = None
            case {"reply": dict(told), "spent": spent} if worker.sent and _is_reply(told):
                self._hear(worker, worker.sent.popleft(), told)
                worker.silence = self._options.timeout if worker.sent else None
                if spent:
                    self._retire(worker)
            case _:
                raise PeerLost("sent another form of answer", worker.end())

    def _hear(self, worker: _Worker, rollout: _Rollout, told: dict[str, Any]) -> None:
        """Pass on a reply, or compare it with the one that it repeats."""
        repeated = rollout.answered < len(rollout.replies)
        if repeated and told != rollout.replies[rollout.answered]:
            del worker.rollouts[rollout.number]
            reason = (
                "the environment was lost with its worker, and replied differently when its calls "
                "were repeated"
            )
            self._fail(rollout, reason)
            return
        rollout.answered += 1
        if not repeated:
            rollout.replies.append(told)
            if told["done"]:
                del worker.rollouts[rollout.number]
            self._reply(rollout, Reply(**told))
        if rollout.answered < len(rollout.calls):
            worker.waiting.append(rollout)

    def _reply(self, rollout: _Rollout, reply: Reply) -> None:
        self._replies.append((rollout.number, reply))
        self._open.discard(rollout.number)
        if reply.done:
            del self._rollouts[rollout.number]

    def _fail(self, rollout: _Rollout, reason: str, unfinished: bool = False) -> None:
        """Let a rollout fail: now if its caller waits for a reply, else at the next call."""
        rollout.failed = Reply(done=True, failure=reason, unfinished=unfinished)
        if rollout.number in self._open:
            self._reply(rollout, rollout.failed)

    def _lose(self, worker: _Worker, lost: PeerLost) -> None:
        """Handle a worker that died or reached a deadline."""
        if not worker.ready:
            self.close()
            raise worker.never_ready(lost, self._proven)
        # Between calls, each of them may have ended it.
        suspects = [worker.sent[0]] if worker.sent else list(worker.rollouts.values())
        if worker.sent and (taken := worker.loss(lost)):
            del worker.rollouts[suspects[0].number]
            self._fail(suspects[0], *taken)
        for suspect in suspects:
            suspect.deaths += 1
            if suspect.deaths == _DEATHS and suspect.number in worker.rollouts:
                del worker.rollouts[suspect.number]
                self._fail(suspect, f"the worker died ({lost.ended})")
        self._retire(worker)

    def _retire(self, worker: _Worker) -> None:
        """End a worker, and begin its rollouts again in others."""
        self._workers.remove(worker)
        worker.end()
        self._start_missing()
        for rollout in worker.rollouts.values():
            rollout.answered = 0
            self._assign(rollout)
            self._worker_of(rollout).waiting.append(rollout)


def _is_reply(told: dict[str, Any]) -> bool:
    """Return whether `told` has the form of a reply. An environment could send others."""
    match told:
        case {
            "messages": list(messages),
            "done": bool(),
            "reward": float() | None,
            "failure": str() | None,
            "unfinished": bool(),
            "logged": dict(logged),
        }:
            numbers = all(isinstance(value, int | float) for value in logged.values())
            return numbers and len(told) == 6 and all(map(_is_message, messages))
    return False


def _is_message(message: Any) -> bool:
    match message:
        case {"role": "user" | "tool", "content": str()}:
            return True
    return False
