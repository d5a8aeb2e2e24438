"""What answers one rollout at a time: an object with TRL's contract, or a function of messages."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from mugrpo.environments.base import Reply
from mugrpo.processes.messages import printable
from mugrpo.rewards.functions import BrokenContractError, CallLog, parameters_of, usable_number

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
