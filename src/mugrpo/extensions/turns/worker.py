"""The program of an environment worker: loads the environment, then answers for its rollouts.

python -m mugrpo.extensions.turns.worker SOCKET LIFELINE

An object with TRL's contract, or a function of messages, answers one rollout at a time.
"""

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.turns import EnvironmentOptions
from mugrpo.extensions.turns.base import Reply
from mugrpo.processes.functions import (
    BrokenContractError,
    CallLog,
    load_function,
    parameters_of,
    usable_number,
)
from mugrpo.processes.messages import first_line, printable
from mugrpo.processes.workers import Handler, failure, serve

Tools = Mapping[str, Callable[..., Any]]

_NOT_TOOLS = ("reset", "get_reward")
_ADDED = ("seed", "log_metric")  # given to functions that name them


class Tooled:
    """A session with tools: `functions` and the methods of `environment`, if there is one.

    The rollout is over when the model answers without calling a tool, as in TRL. What an
    environment's `get_reward` then returns is the reward.
    """

    def __init__(
        self, label: str, environment: Any, functions: Tools, runner: asyncio.Runner
    ) -> None:
        self._label, self.environment, self._runner = label, environment, runner
        self._tools = {**functions, **methods_of(environment)}
        self._log = CallLog(1)
        self._counts = {"tools/calls": 0, "tools/failures": 0}

    def begin(self, seed: int, row: Mapping[str, Any]) -> Reply:
        """Reset the environment. What it returns goes to the user's message."""
        self._log = CallLog(1)
        self._counts = dict.fromkeys(self._counts, 0)
        if self.environment is None:
            return Reply()
        added = _added(seed, self._log)
        told = self.environment.reset(**_arguments(self.environment.reset, row, added))
        if told is None:
            return Reply()
        return Reply([{"role": "user", "content": _text(told)}])

    def step(self, message: Mapping[str, Any]) -> Reply:
        """Call the tools that `message` names, and tell the model what they return or raise."""
        if not (calls := message.get("tool_calls")):
            return self.end()
        results = [self._call(call) for call in calls]
        waiting = [result for _, result in results if inspect.isawaitable(result)]
        awaited = iter(self._runner.run(_all(waiting)) if waiting else ())
        answers = []
        for name, result in results:
            result = next(awaited) if inspect.isawaitable(result) else result
            if isinstance(result, Exception):
                self._counts["tools/failures"] += 1
                result = {"error": str(result)}
            answers.append({"role": "tool", "name": name, "content": _text(result)})
        return Reply(answers)

    def end(self) -> Reply:
        """Return the reward of the environment."""
        reward = None
        if hasattr(self.environment, "get_reward"):
            value = _awaited(self.environment.get_reward(), self._runner)
            reward = _reward(value, f"{self._label}.get_reward")
        return Reply(done=True, reward=reward, logged={**_means(self._log), **self._counts})

    def _call(self, call: Mapping[str, Any]) -> tuple[str, Any]:
        """Return (the tool's name, its result, an awaitable of it, or the exception)."""
        self._counts["tools/calls"] += 1
        name = "unknown"
        try:
            function = call["function"]
            name = str(function["name"])
            if name not in self._tools:
                return name, ValueError(f"Tool {name} not found.")
            return name, self._tools[name](**function.get("arguments", {}))
        except MemoryError:
            raise
        except Exception as error:
            return name, error


class Answering:
    """A session of a function of the messages.

    It returns what follows the model's message: the text of a user's message, a message, or
    several; or, if the rollout is done, its reward, or None for no reward. The reward of a rollout
    that ends before it is done is 0.
    """

    def __init__(
        self,
        label: str,
        function: Callable[..., Any],
        kwargs: Mapping[str, Any],
        runner: asyncio.Runner,
    ) -> None:
        self._label, self._function, self._kwargs = label, function, kwargs
        self._runner = runner
        self._messages: list[Mapping[str, Any]] = []
        self._arguments: dict[str, Any] = {}
        self._log = CallLog(1)

    def begin(self, seed: int, row: Mapping[str, Any]) -> Reply:
        """Keep the prompt. The function is not called yet."""
        self._log = CallLog(1)
        prompt = row["prompt"]
        first = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        self._messages = list(first)
        own = _arguments(self._function, row, _added(seed, self._log), first=1)
        self._arguments = {**own, **self._kwargs}
        return Reply()

    def step(self, message: Mapping[str, Any]) -> Reply:
        self._messages.append(message)
        told = self._function([dict(one) for one in self._messages], **self._arguments)
        told = _awaited(told, self._runner)
        if told is None or usable_number(told) is not None:
            return self._done(_reward(told, self._label))
        messages = self._checked(told)
        self._messages.extend(messages)
        return Reply(messages)

    def end(self) -> Reply:
        return self._done(0.0)

    def _done(self, reward: float | None) -> Reply:
        return Reply(done=True, reward=reward, logged=_means(self._log))

    def _checked(self, told: Any) -> Sequence[Mapping[str, Any]]:
        if isinstance(told, str):
            return [{"role": "user", "content": _text(told)}]
        messages = [told] if isinstance(told, Mapping) else told
        if not isinstance(messages, list | tuple) or not messages or not all(map(_said, messages)):
            raise BrokenContractError(
                f"{self._label} returned {printable(repr(told), 60)}; it must be the text of the "
                "next message, messages with role 'user' or 'tool', a reward or None"
            )
        return [{**message, "content": _text(message["content"])} for message in messages]


def methods_of(environment: Any) -> Tools:
    """Return the public methods of an environment, which are tools, by their names, as TRL does."""
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    return {
        name: getattr(environment, name)
        for name, _ in members
        if environment is not None and name not in _NOT_TOOLS and not name.startswith("_")
    }


def _said(message: Any) -> bool:
    return (
        isinstance(message, Mapping)
        and message.get("role") in ("user", "tool")
        and isinstance(message.get("content"), str)
    )


def _arguments(
    function: Callable[..., Any], row: Mapping[str, Any], added: Mapping[str, Any], first: int = 0
) -> dict[str, Any]:
    """Return those of `row` that `function` takes after its `first` arguments.

    `added` are given only to a function that names them, and only where the row has no column.
    """
    names = list(inspect.signature(function).parameters)
    every = parameters_of(function) is None  # it takes any keyword
    taken = [name for name in row if name not in names[:first] and (every or name in names)]
    given = {name: added[name] for name in names[first:] if name in added}
    return given | {name: row[name] for name in taken}


def _added(seed: int, log: CallLog) -> dict[str, Any]:
    return dict(zip(_ADDED, (seed % 2**32, log.log_metric), strict=True))


def _means(log: CallLog) -> dict[str, float]:
    return {name: sum(values) / len(values) for name, values in log.metrics.items()}


def _reward(value: Any, label: str) -> float | None:
    """Return a reward as a float. None is no reward, a bool 0 or 1, as in TRL."""
    if value is None:
        return None
    if (number := usable_number(value)) is None:
        raise BrokenContractError(
            f"{label} returned {printable(repr(value), 60)}; a reward must be a number between "
            "-1e9 and 1e9, or None for no reward"
        )
    return number


def _text(result: Any) -> str:
    """Return what an environment says, without half characters, which no tokenizer reads."""
    return str(result).encode("utf-8", "replace").decode()


def _awaited(value: Any, runner: asyncio.Runner) -> Any:
    """Return `value`, or what it comes to if it is awaitable. Raises what that raises."""
    if inspect.isawaitable(value):
        [value] = runner.run(_all([value]))
        if isinstance(value, Exception):
            raise value
    return value


async def _all(waiting: Sequence[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*waiting, return_exceptions=True)


Session = Tooled | Answering  # answers one rollout after another; `begin` forgets the one before


class EnvironmentHost:
    """Sessions for the rollouts of one process.

    Objects with TRL's contract serve one rollout after another, and are reset for each.
    Raises UsageError if the options name code that cannot be loaded, that is no environment, or,
    with `own_reward`, that gives no reward.
    """

    def __init__(self, options: EnvironmentOptions, *, own_reward: bool = False) -> None:
        self._runner, self._kwargs = asyncio.Runner(), options.kwargs
        self._label = options.name.rpartition(":")[2] if options.name else "tools"
        self.functions = {
            tool.rpartition(":")[2]: load_function(tool, "tool") for tool in options.tools
        }
        self._loaded = load_function(options.name, "environment") if options.name else None
        # a class makes objects; any other function is one of messages
        self._answers = self._loaded is not None and not inspect.isclass(self._loaded)
        self._sessions: dict[int, Session] = {}
        self._free: list[Session] = [self._first(f"the environment {options.name}", own_reward)]

    def schemas(self) -> list[Mapping[str, Any]]:
        """Return the JSON schemas of the tools, from their signatures and docstrings.

        Raises UsageError for a tool that has none.
        """
        if not self.functions:
            return []
        from transformers.utils.chat_template_utils import get_json_schema  # imports torch

        try:
            return [get_json_schema(tool) for tool in self.functions.values()]
        except Exception as error:
            text = first_line(error)
            raise UsageError(f"a tool cannot be described to a model: {text}") from None

    def answer(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a call: {"reply": ..., "spent": ...} or {"broken": reason}.

        A call is {"rollout", "seed", "number": of the rollout's calls, "call": "begin", "step" or
        "end"}, with "row" or "message". Random numbers depend only on seed and number.
        """
        rollout, spent = call["rollout"], False
        random.seed(f"{call['seed']} {call['number']}")
        np.random.seed([call["seed"] % 2**32, call["seed"] >> 32, call["number"]])
        try:
            reply = self._reply(rollout, call)
        except BrokenContractError as error:
            return {"broken": str(error)}
        except BaseException as error:
            self._sessions.pop(rollout, None)
            failed = failure(self._label, error)
            spent = failed.pop("spent")
            reply = Reply(done=True, **failed)
        else:
            if reply.done:
                self._free.append(self._sessions.pop(rollout))
        return {"reply": asdict(reply), "spent": spent}

    def _reply(self, rollout: int, call: Mapping[str, Any]) -> Reply:
        if call["call"] == "begin":
            self._sessions[rollout] = self._free.pop() if self._free else self._new()
            return self._sessions[rollout].begin(call["seed"], call["row"])
        session = self._sessions[rollout]
        return session.end() if call["call"] == "end" else session.step(call["message"])

    def _new(self) -> Session:
        if self._answers and self._loaded is not None:
            return Answering(self._label, self._loaded, self._kwargs, self._runner)
        made = None if self._loaded is None else self._loaded(**self._kwargs)
        return Tooled(self._label, made, self.functions, self._runner)

    def _first(self, what: str, own_reward: bool) -> Session:
        """Return a session. Raises UsageError if the environment does not keep the contract."""
        if self._answers:
            if self.functions:
                raise UsageError(f"{what} is a function, so it has no environment.tools")
            return self._new()
        try:
            session = self._new()
        except BaseException as error:
            text = printable(f"{type(error).__name__}: {error}")
            raise UsageError(f"{what} cannot be made: {text}") from None
        made = session.environment if isinstance(session, Tooled) else None
        if made is None:
            return session
        self.functions = {**self.functions, **methods_of(made)}
        rewards = hasattr(made, "get_reward")
        if not hasattr(made, "reset") or not (self.functions or rewards):
            raise UsageError(
                f"{what} needs a method `reset`, and a method that a model can call as a tool, or "
                "`get_reward`"
            )
        if own_reward and not rewards:
            raise UsageError(f"{what} has no `get_reward`, which the reward environment asks for")
        return session


def _load(setup: dict[str, Any]) -> tuple[dict[str, Any], Handler]:
    options = EnvironmentOptions.model_validate(setup["environment"])
    host = EnvironmentHost(options, own_reward=setup["own_reward"])
    return (
        {"tools": host.schemas() if setup.get("describe") else None},
        lambda message: host.answer(message[0] | message[1]),
    )


if __name__ == "__main__":
    serve(_load)
