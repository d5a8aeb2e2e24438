"""Environments of verifiers in workers under an interpreter of their own, many rollouts in each.

A worker plays the episodes and has the endpoint that they ask (`worker`). What they ask goes to
the run's engine, so that the tokens of all turns are those that the engine has drawn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mugrpo.config.base import WorkerOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.records import Message
from mugrpo.extensions.turns import EnvironmentOptions
from mugrpo.extensions.turns.base import Reply
from mugrpo.extensions.turns.pool import EnvironmentPool, Episode
from mugrpo.processes.messages import printable, to_json
from mugrpo.processes.peer import TICK, PeerLost
from mugrpo.processes.workers import Worker

_PROGRAM = Path(__file__).with_name("worker.py")


@dataclass(eq=False)
class _Episode(Episode):
    """A rollout, as its worker knows it: an earlier one may have had the same number."""

    serial: int = 0
    conversation: Conversation = field(default_factory=lambda: Conversation(()))
    since: float = 0.0  # when the last call was sent


class VerifiersEnvironments(EnvironmentPool):
    """The environment `verifiers:NAME` that `options` name.

    A row needs the column "task", which `mugrpo problems` writes. The seed is not used: a task of
    verifiers holds its chance. Unlike other environments, those of a worker answer in any order,
    and each has a deadline of its own; none is repeated elsewhere if the worker is lost.
    """

    def __init__(self, options: EnvironmentOptions, workers: WorkerOptions, **named: Any) -> None:
        super().__init__(options, workers, **named)
        assert options.name is not None and options.python is not None
        name = options.name.rpartition(":")[2]
        own_reward = self._setup["own_reward"]
        self._setup = {"name": name, "kwargs": options.kwargs, "own_reward": own_reward}
        self._module, self._python = str(_PROGRAM), options.python
        self._begun = 0

    @cached_property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools of the environment's requests.

        Raises UsageError if the environment cannot be loaded.
        """
        self._loaded()
        tools: Sequence[Mapping[str, Any]] = self.greeting["tools"]
        return tools

    def problems(self, count: int) -> list[dict[str, Any]]:
        """Return the first `count` problems, as rows (`mugrpo problems`).

        Raises UsageError if the environment cannot be loaded, and RunStopped if it is lost.
        """
        worker = self._loaded()
        try:
            worker.send(to_json({"problems": count}))
            while "problems" not in (message := worker.hear() or {}):
                pass
        except PeerLost as lost:
            raise RunStopped(worker.loss(lost)[0]) from None
        rows: list[dict[str, Any]] = message["problems"]
        return rows

    def _loaded(self) -> Worker:
        """Return a worker that has loaded the environment."""
        if not self._workers:
            self._workers.append(self._new_worker())
        while not (ready := [worker for worker in self._workers if worker.ready]):
            self._attend()
        return ready[0]

    def _episode(self, rollout: int, seed: int, row: Mapping[str, Any]) -> Episode:
        if "task" not in row or isinstance(row["prompt"], str):
            raise UsageError(
                "a problem for verifiers needs the columns prompt and task; write them with "
                "`mugrpo problems`"
            )
        self._begun += 1
        return _Episode(rollout, seed, serial=self._begun, conversation=Conversation(row["prompt"]))

    def step(self, rollout: int, message: Message) -> None:
        episode = self._rollouts[rollout]
        assert isinstance(episode, _Episode)
        super().step(rollout, episode.conversation.said(message))

    def _new_worker(self, **setup: Any) -> Worker:
        try:
            return super()._new_worker(**setup)
        except OSError as error:
            raise UsageError(
                f"environment.python = {self._python!r} cannot be run ({error.strerror}); name "
                "an interpreter that has verifiers installed"
            ) from None

    def _dispatch(self) -> None:
        """Send all that was said to workers that are ready: their environments run at once."""
        for worker in [worker for worker in self._workers if worker.ready]:
            for job in [one for one in worker.jobs if one.answered < len(one.calls)]:
                text = f"[{job.serial}, {job.calls[job.answered]}]"
                job.answered, job.since = job.answered + 1, time.monotonic()
                try:
                    worker.send(text)
                except PeerLost as lost:
                    self._lose(worker, lost)
                    break

    def _attend(self, patience: float = TICK) -> None:
        super()._attend(patience)
        limit = self._limits.seconds
        late = time.monotonic() - limit
        for job in [job for worker in self._workers for job in worker.jobs] if limit else ():
            if job.number in self._open and job.answered == len(job.calls) and job.since < late:
                self._fail(job, f"not finished within {limit:g} seconds", True)

    def _take(self, worker: Worker, message: dict[str, Any]) -> None:
        if "alive" in message:
            return
        if "rollout" not in message:
            super()._take(worker, message)
            worker.silence = self._limits.seconds or None  # it says every second that it lives
            return
        job = next((one for one in worker.jobs if one.serial == message["rollout"]), None)
        if job is None:  # it was told to stop
            return
        if "asked" in message:
            self._asked(job, **message["asked"])
            return
        worker.jobs.remove(job)
        done = message["done"]
        failure = done["failure"] and printable(done["failure"])
        self._finish(job, Reply(**{**done, "done": True, "failure": failure}))

    def _asked(self, job: _Episode, messages: list[Any], tools: list[Any]) -> None:
        if job.number not in self._open:
            self._fail(job, "the environment asks for two messages of the model at once")
            return
        try:
            added = job.conversation.added(messages)
        except (Rewritten, AttributeError, LookupError, TypeError) as error:
            self._fail(job, str(error))
            return
        if tools != self.greeting["tools"]:
            self._fail(job, "the tools of a request are others than those of the first problem")
            return
        self._reply(job, Reply(messages=added))

    def _fail(self, job: Any, reason: str, unfinished: bool = False) -> None:
        """Let a rollout fail, and tell its worker to forget it."""
        super()._fail(job, printable(reason), unfinished)
        for worker in [worker for worker in self._workers if job in worker.jobs]:
            worker.jobs.remove(job)
            with suppress(PeerLost):  # `_attend` notices
                worker.send(to_json([job.serial, {"call": "stop"}]))

    def _lose(self, worker: Worker, lost: PeerLost) -> None:
        if worker.ready:
            for job in list(worker.jobs):
                self._fail(job, *worker.loss(lost))
        super()._lose(worker, lost)


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
        for place, before in enumerate(self._messages):  # some leave a tool's name out
            if place >= len(now) or {**before, "name": None} != {**now[place], "name": None}:
                raise Rewritten(
                    f"message {place} of the conversation ({before['role']}) is missing or another "
                    "one in the next request; a rollout must be one growing sequence of tokens"
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
