"""The program of an environment worker: loads the environment, then answers for its rollouts.

python -P -m mugrpo.environments.worker MEGABYTES SOCKET LIFELINE

An object with TRL's contract, or a function of messages, answers one rollout at a time.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np

from mugrpo.config.rewards import EnvironmentOptions
from mugrpo.disk.errors import UsageError
from mugrpo.environments.base import Reply
from mugrpo.processes.messages import printable
from mugrpo.processes.workers import Answer, failure, serve
from mugrpo.rewards.functions import (
    BrokenContractError,
    CallLog,
    load_function,
    parameters_of,
    usable_number,
)

Tools = Mapping[str, Callable[..., Any]]

_NOT_TOOLS = ("reset", "get_reward")
_ADDED = ("seed", "log_metric")  # given to functions that name them


class Session(Protocol):
    """What answers one rollout after another. `begin` forgets the one before.

    An exception is a failure of the rollout. Raises BrokenContractError for a fault that no other
    attempt can mend.
    """

    def begin(self, seed: int, row: Mapping[str, Any]) -> Reply: ...

    def step(self, message: Mapping[str, Any]) -> Reply: ...

    def end(self) -> Reply: ...


class Tooled:
    """A session with tools: `functions` and the methods of `environment`, if there is one.

    The rollout is over when the model answers without calling a tool, as in TRL. What an
    environment's `get_reward` then returns is the reward.
    """

    def __init__(
        self, label: str, environment: Any, functions: Tools, runner: asyncio.Runner
    ) -> None:
        self._label, self._environment, self._runner = label, environment, runner
        self._tools = {**functions, **methods_of(environment)}
        self._log = CallLog(1)
        self._counts = {"tools/calls": 0, "tools/failures": 0}

    def begin(self, seed: int, row: Mapping[str, Any]) -> Reply:
        """Reset the environment. What it returns goes to the user's message."""
        self._log = CallLog(1)
        self._counts = dict.fromkeys(self._counts, 0)
        if self._environment is None:
            return Reply()
        added = _added(seed, self._log)
        told = self._environment.reset(**_arguments(self._environment.reset, row, added))
        if told is None:
            return Reply()
        if not isinstance(told, str | list):
            raise BrokenContractError(
                f"{self._label}.reset returned {printable(repr(told), 60)}, neither text nor None"
            )
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
        if hasattr(self._environment, "get_reward"):
            value = self._environment.get_reward()
            if inspect.isawaitable(value):
                [value] = self._runner.run(_all([value]))
                if isinstance(value, Exception):
                    raise value
            reward = _reward(value, f"{self._label}.get_reward")
        return Reply(done=True, reward=reward, logged={**_means(self._log), **self._counts})

    def _call(self, call: Mapping[str, Any]) -> tuple[str, Any]:
        """Return (the tool's name, its result, an awaitable of it, or the exception)."""
        self._counts["tools/calls"] += 1
        try:
            if call.get("type", "function") != "function":
                name = str(call.get("name", "unknown"))
                return name, ValueError(f"Unsupported tool call type: {call['type']}")
            function = call["function"]
            name = str(function["name"])
        except (KeyError, TypeError, AttributeError):
            return "unknown", ValueError("The tool call has no function with a name.")
        if name not in self._tools:
            return name, ValueError(f"Tool {name} not found.")
        try:
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
        if inspect.isawaitable(told):
            [told] = self._runner.run(_all([told]))
            if isinstance(told, Exception):
                raise told
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
    """Return what an environment says as text that a tokenizer reads.

    Raises BrokenContractError for the block of an image, which no model here reads.
    """
    if isinstance(result, list) and result and all(_is_block(block) for block in result):
        if other := [block["type"] for block in result if block["type"] != "text"]:
            raise BrokenContractError(
                f"an environment answered with {printable(str(other[0]), 60)}; models here read "
                "only text"
            )
        result = "".join(str(block.get("text", "")) for block in result)
    return str(result).encode("utf-8", "replace").decode()


def _is_block(block: Any) -> bool:
    return isinstance(block, Mapping) and isinstance(block.get("type"), str)


async def _all(waiting: Sequence[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*waiting, return_exceptions=True)


class Host:
    """Sessions for the rollouts of one process.

    Objects with TRL's contract serve one rollout after another, and are reset for each.
    Raises UsageError if the options name code that cannot be loaded, that is no environment, or,
    with `own_reward`, that gives no reward.
    """

    def __init__(self, options: EnvironmentOptions, *, own_reward: bool = False) -> None:
        self._options, self._runner = options, asyncio.Runner()
        self._label = options.name.rpartition(":")[2] if options.name else "tools"
        self._functions = {
            tool.rpartition(":")[2]: load_function(tool, "tool") for tool in options.tools
        }
        self._loaded = load_function(options.name, "environment") if options.name else None
        self._sessions: dict[int, Session] = {}
        first, self.functions = self._first(own_reward)
        self._free: list[Session] = [first]

    def schemas(self) -> list[Mapping[str, Any]]:
        """Return the JSON schemas of the tools, from their signatures and docstrings.

        Raises UsageError for a tool that has none.
        """
        if not self.functions:
            return []
        from transformers.utils.chat_template_utils import get_json_schema  # imports torch

        schemas: list[Mapping[str, Any]] = []
        for name, tool in self.functions.items():
            try:
                schemas.append(get_json_schema(tool))
            except Exception as error:
                text = printable(str(error).strip().split("\n")[0])
                raise UsageError(
                    f"the tool {name} cannot be described to a model: {text}"
                ) from None
        return schemas

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
        if self._loaded is not None and self._answers:
            return Answering(self._label, self._loaded, self._options.kwargs, self._runner)
        made = None if self._loaded is None else self._loaded(**self._options.kwargs)
        return Tooled(self._label, made, self._functions, self._runner)

    @property
    def _answers(self) -> bool:
        """Whether the environment is a function of messages, and not what makes an object."""
        return not inspect.isclass(self._loaded) and not _callable(
            self._loaded, **self._options.kwargs
        )

    def _first(self, own_reward: bool) -> tuple[Session, Mapping[str, Callable[..., Any]]]:
        """Return a session, and the tools by their names. Raises UsageError if there is a fault."""
        what = f"the environment {self._options.name}"
        if self._loaded is None:
            return self._new(), self._functions
        if self._answers:
            self._require_messages(what)
            return self._new(), {}
        try:
            made = self._loaded(**self._options.kwargs)
        except BaseException as error:
            text = printable(f"{type(error).__name__}: {error}")
            raise UsageError(f"{what} cannot be made: {text}") from None
        methods = methods_of(made)
        _require_contract(what, made, bool(methods or self._functions), own_reward)
        if twice := methods.keys() & self._functions.keys():
            raise UsageError(f"{what} has a method {min(twice)} beside the tool of that name")
        session = Tooled(self._label, made, self._functions, self._runner)
        return session, {**self._functions, **methods}

    def _require_messages(self, what: str) -> None:
        """Raise UsageError unless the environment, a function, can be called with messages."""
        if not _callable(self._loaded, [], **self._options.kwargs):
            raise UsageError(
                f"{what} cannot be called with messages and environment.kwargs; the function's "
                "first argument must be the messages"
            )
        if self._functions:
            raise UsageError(
                f"{what} is a function of messages, which does not go with environment.tools; "
                "write a class with `reset`, or leave the tools out"
            )


def _require_contract(what: str, made: Any, tools: bool, own_reward: bool) -> None:
    """Raise UsageError unless an object is an environment, with a reward if that is asked for."""
    rewards = hasattr(made, "get_reward")
    if not callable(getattr(made, "reset", None)):
        raise UsageError(f"{what} has no method `reset`, with which a rollout begins")
    if not tools and not rewards:
        raise UsageError(
            f"{what} has no method that a model could call as a tool, and no `get_reward`"
        )
    if own_reward and not rewards:
        raise UsageError(
            f"{what} has no `get_reward`, which the reward environment asks for; add it, or name "
            "other rewards"
        )


def _callable(function: Any, *arguments: Any, **keywords: Any) -> bool:
    """Return whether `function` can be called with only these arguments, by its signature.

    Columns of the data fill the others of a function of messages, so these do not count.
    """
    try:
        parameters = inspect.signature(function)
        if not arguments:
            parameters.bind(**keywords)
        else:
            parameters.bind_partial(*arguments, **keywords)
    except (TypeError, ValueError):
        return False
    return True


def _load(setup: dict[str, Any]) -> tuple[dict[str, Any], Answer]:
    options = EnvironmentOptions.model_validate(setup["environment"])
    host = Host(options, own_reward=setup["own_reward"])
    return (
        {"tools": host.schemas() if setup.get("describe") else None},
        lambda message: host.answer(message[0] | message[1]),
    )


if __name__ == "__main__":
    serve(_load)
