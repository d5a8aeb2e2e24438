"""Environments of verifiers in workers under an interpreter of their own, many rollouts in each.

A worker plays the episodes and has the endpoint that they ask (`worker`). What they ask goes to
the run's engine, so that the tokens of all turns are those that the engine has drawn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mugrpo.config.base import WorkerOptions
from mugrpo.config.rewards import EnvironmentOptions
from mugrpo.disk.errors import BrokenReward, RunStopped, UsageError
from mugrpo.environments.base import Reply
from mugrpo.processes.messages import printable, to_json
from mugrpo.processes.peer import TICK, PeerLost, audible
from mugrpo.processes.workers import Limits, Worker

_PROGRAM = Path(__file__).with_name("worker.py")


@dataclass(eq=False)
class _Rollout:
    """A rollout that goes on. It owes a reply since `since`, or it waits for the model."""

    number: int
    serial: int  # the number that its worker knows: an earlier rollout may have had the same one
    worker: _Worker
    conversation: Conversation
    owes: bool = True
    since: float = field(default_factory=time.monotonic)
    last: Reply | None = None  # to whatever is said next: it has ended while it waited


class _Worker(Worker):
    """A process with the episodes of `rollouts`."""

    rollouts: dict[int, _Rollout]  # by their serial numbers


class VerifiersEnvironments:
    """The environment `verifiers:NAME` that `options` name (see `base.Environments`).

    A row needs the column "task", which `mugrpo problems` writes. What environments print goes to
    `log`, or to stderr. With `own_reward`, a rollout without a reward breaks the
    contract.
    """

    def __init__(
        self,
        options: EnvironmentOptions,
        workers: WorkerOptions,
        *,
        own_reward: bool = False,
        log: Path | None = None,
    ) -> None:
        assert options.name is not None and options.python is not None
        self._options, self._limits, self._log, self._own_reward = options, workers, log, own_reward
        self._workers: list[_Worker] = []
        self._tools: list[Mapping[str, Any]] | None = None
        self._rollouts: dict[int, _Rollout] = {}
        self._begun = 0
        self._replies: list[tuple[int, Reply]] = []

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools of the environment's requests.

        Raises UsageError if the environment cannot be loaded.
        """
        if self._tools is None:
            self._start(1)
            self._wait(self._workers[0])
        assert self._tools is not None
        return self._tools

    def problems(self, count: int) -> Iterator[dict[str, Any]]:
        """Yield the first `count` problems, as rows (`mugrpo problems`)."""
        self._start(1)
        worker = self._workers[0]
        self._wait(worker)
        worker.send(to_json({"problems": count}))
        while True:
            match self._hear(worker):
                case {"problem": dict(row)}:
                    yield row
                case {"problems": int()}:
                    return

    def begin(self, rollout: int, seed: int, row: Mapping[str, Any]) -> None:
        """See `Environments.begin`. The seed is not used: a task of verifiers holds its chance."""
        prompt = row["prompt"]
        if "task" not in row or isinstance(prompt, str):
            raise UsageError(
                f"a problem for {self._options.name} needs the columns prompt and task; write "
                "them with `mugrpo problems`"
            )
        self._start(self._limits.processes)
        worker = min(self._workers, key=lambda one: len(one.rollouts))
        self._begun += 1
        began = _Rollout(rollout, self._begun, worker, Conversation(prompt))
        self._rollouts[rollout] = worker.rollouts[began.serial] = began
        self._send(began, {"begin": {"rollout": began.serial, "task": row["task"]}})

    def step(self, rollout: int, message: Mapping[str, Any]) -> None:
        live = self._rollouts[rollout]
        said = {"rollout": live.serial, "message": live.conversation.said(message)}
        self._send(live, {"said": said})

    def end(self, rollout: int) -> None:
        live = self._rollouts[rollout]
        self._send(live, {"full": {"rollout": live.serial}})

    def replies(self, seconds: float) -> Sequence[tuple[int, Reply]]:
        """Return the replies that have come, as soon as there is one, after at most `seconds`."""
        deadline = time.monotonic() + seconds
        while not self._replies and self._workers:
            owed = any(one.owes for one in self._rollouts.values())
            patience = deadline - time.monotonic() if owed else 0.0
            self._attend(min(TICK, max(0.0, patience)))
            if patience <= 0:
                break
        replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        """End all workers, and forget all rollouts."""
        while self._workers:
            self._workers.pop().end()
        self._rollouts, self._replies = {}, []

    def _start(self, count: int) -> None:
        while len(self._workers) < count:
            self._workers.append(self._new_worker())

    def _new_worker(self) -> _Worker:
        options = self._options
        try:
            worker = _Worker(
                str(_PROGRAM),
                {"name": str(options.name).rpartition(":")[2], "kwargs": options.kwargs},
                Limits(self._limits.waiting, 0.0, self._limits.memory_mb),
                kind="worker of verifiers",
                log=self._log,
                python=options.python,
            )
        except OSError as error:
            raise UsageError(
                f"environment.python = {options.python!r} cannot be run ({error.strerror}); name "
                "an interpreter that has verifiers installed"
            ) from None
        worker.rollouts = {}
        return worker

    def _wait(self, worker: _Worker) -> None:
        """Wait until the worker has loaded the environment."""
        while not worker.ready:
            if (message := self._hear(worker)) is not None:
                self._take(worker, message)

    def _hear(self, worker: _Worker) -> Any:
        """Return the next message while no rollout runs, or None."""
        try:
            return worker.hear()
        except PeerLost as lost:
            self.close()
            raise worker.never_ready(lost) from None

    def _send(self, live: _Rollout, message: dict[str, Any]) -> None:
        live.owes, live.since = True, time.monotonic()
        if live.last is not None:
            self._reply(live, live.last)
            return
        try:
            live.worker.send(to_json(message))
        except (TypeError, ValueError) as error:
            raise UsageError(f"a problem's column task cannot be sent: {error}") from None
        except PeerLost as lost:
            self._lose(live.worker, lost)

    def _attend(self, patience: float) -> None:
        """Wait until workers speak, end or fall silent, for at most `patience` seconds."""
        for worker in audible(self._workers, patience):
            try:
                while (message := worker.hear(0.0)) is not None:
                    self._take(worker, message)
            except PeerLost as lost:
                self._lose(worker, lost)
        now, limit = time.monotonic(), self._limits.waiting
        for live in list(self._rollouts.values()):
            if limit and live.owes and live.worker.ready and now - live.since > limit:
                self._fail(live, f"not finished within {limit:g} seconds", unfinished=True)

    def _take(self, worker: _Worker, message: Any) -> None:
        """Handle a worker's message. Raises PeerLost if it has another form."""
        match message:
            case {"alive": True}:
                pass
            case {"ready": True, "tools": list(tools)}:
                worker.ready, self._tools = True, tools
                worker.silence = self._limits.waiting or None  # it says every second that it lives
                for live in worker.rollouts.values():
                    live.since = time.monotonic()
            case {"failed": "refused", "text": str(text)}:
                self.close()
                known = self._tools is not None
                raise (RunStopped if known else UsageError)(
                    f"environment.name = {self._options.name!r} cannot be loaded by {text}"
                )
            case {"asked": {"rollout": int(number), "messages": list(said), "tools": list(tools)}}:
                if (one := worker.rollouts.get(number)) is not None:
                    self._asked(one, said, tools)
            case {
                "done": {
                    "rollout": int(number),
                    "reward": float() | None as reward,
                    "failure": str() | None as failure,
                    "logged": dict(logged),
                }
            } if all(isinstance(value, float) for value in logged.values()):
                if (one := worker.rollouts.pop(number, None)) is not None:
                    self._done(one, reward, failure, logged)
            case _:
                raise PeerLost("has sent another form of message", worker.end())

    def _asked(self, live: _Rollout, messages: list[Any], tools: list[Any]) -> None:
        if not live.owes:
            self._fail(live, "the environment asks for two messages of the model at once")
            return
        try:
            added = live.conversation.added(messages)
        except (Rewritten, AttributeError, LookupError, TypeError) as error:
            self._fail(live, str(error))
            return
        if tools != self._tools:
            self._fail(live, "the tools of a request are others than those of the first problem")
            return
        self._reply(live, Reply(messages=added))

    def _done(
        self, live: _Rollout, reward: float | None, failure: str | None, logged: dict[str, float]
    ) -> None:
        if self._own_reward and reward is None and failure is None:
            raise BrokenReward(
                f"{self._options.name} has given no reward, which the reward environment asks for"
            )
        failure = None if failure is None else printable(failure)
        self._reply(live, Reply(done=True, reward=reward, failure=failure, logged=logged))

    def _fail(self, live: _Rollout, reason: str, unfinished: bool = False) -> None:
        """Let a rollout fail, and tell its worker to forget it."""
        self._reply(live, Reply(done=True, failure=printable(reason), unfinished=unfinished))
        del live.worker.rollouts[live.serial]
        try:
            live.worker.send(to_json({"stop": {"rollout": live.serial}}))
        except PeerLost as lost:
            self._lose(live.worker, lost)

    def _reply(self, live: _Rollout, reply: Reply) -> None:
        """Pass on a reply: now if the caller waits for one, else at its next call."""
        if not live.owes:
            live.last = live.last or reply
            return
        live.owes = False
        self._replies.append((live.number, reply))
        if reply.done:
            del self._rollouts[live.number]

    def _lose(self, worker: _Worker, lost: PeerLost) -> None:
        """Let the rollouts of a worker that died or fell silent fail. Others go on."""
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        worker.end()
        if not worker.ready:
            self.close()
            raise worker.never_ready(lost)
        reason, unfinished = worker.loss(lost)
        for live in worker.rollouts.values():
            self._reply(live, Reply(done=True, failure=reason, unfinished=unfinished))


_ADDED = ("user", "tool")  # roles that an environment may speak in
_FORM = {"type": "function"}


class Rewritten(Exception):
    """A request that is not the conversation so far with more messages of the environment."""


class Conversation:
    """What was said in a rollout, in OpenAI's form."""

    def __init__(self, prompt: Sequence[Mapping[str, Any]]) -> None:
        self._messages = [_plain(message) for message in prompt]
        self._turns = 0

    def said(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Add the model's `message`, and return it as OpenAI has it.

        The arguments of calls become JSON text, and calls without an id get one.
        """
        calls = []
        for place, call in enumerate(message.get("tool_calls") or ()):
            function = call["function"]
            arguments = function["arguments"]
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            named = {"name": function["name"], "arguments": text}
            number = call.get("id") or f"call_{self._turns}_{place}"
            calls.append({**_FORM, "id": number, "function": named})
        written = {"role": "assistant", "content": message.get("content") or ""}
        if calls:
            written["tool_calls"] = calls
        self._turns += 1
        self._messages.append(_plain(written))
        return written

    def added(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Add what is new in `messages`, and return it. Raises Rewritten."""
        known = len(self._messages)
        now = [_plain(message) for message in messages]
        for place, (before, after) in enumerate(zip(self._messages, now, strict=False)):
            if {**before, "name": None} != {**after, "name": None}:  # some leave a tool's out
                raise Rewritten(
                    f"message {place} of the conversation ({before['role']}) is another one in "
                    "the next request; a rollout must be one growing sequence of tokens"
                )
        if len(now) < known:
            raise Rewritten(
                f"{known - len(now)} messages of the conversation are missing in the next "
                "request; a rollout must be one growing sequence of tokens"
            )
        for message in now[known:]:
            if message["role"] not in _ADDED:
                raise Rewritten(
                    f"the environment has added a message with role {message['role']!r}; only "
                    f"{' and '.join(_ADDED)} can follow what the model says"
                )
        self._messages = now
        return [dict(message) for message in now[known:]]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a message the model reads, in one form. Raises Rewritten for pictures."""
    content = message.get("content")
    if isinstance(content, list):
        if any(part.get("type") != "text" for part in content):
            raise Rewritten("the environment shows the model something other than text")
        content = "\n".join(part["text"] for part in content)
    plain: dict[str, Any] = {"role": message["role"], "content": content or ""}
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [
            {**_FORM, "id": call["id"], "function": _call(call["function"])} for call in calls
        ]
    for name in ("tool_call_id", "name"):
        if message["role"] == "tool" and message.get(name) is not None:
            plain[name] = message[name]
    return plain


def _call(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments parsed: spaces in their JSON do not count."""
    arguments = function["arguments"]
    with suppress(TypeError, ValueError):
        arguments = json.loads(arguments)
    return {"name": function["name"], "arguments": arguments}
