"""The environments of one process: loads what the options name, and answers for many rollouts."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from mugrpo.config.environment import EnvironmentOptions
from mugrpo.disk.errors import UsageError
from mugrpo.environments.base import Reply
from mugrpo.environments.sessions import Answering, Session, Tooled, methods_of
from mugrpo.processes.messages import printable
from mugrpo.processes.workers import failure
from mugrpo.rewards.functions import BrokenContractError, load_function


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
            return Answering(self._label, self._loaded, self._options.kwargs.value, self._runner)
        made = None if self._loaded is None else self._loaded(**self._options.kwargs.value)
        return Tooled(self._label, made, self._functions, self._runner)

    @property
    def _answers(self) -> bool:
        """Whether the environment is a function of messages, and not what makes an object."""
        return not inspect.isclass(self._loaded) and not _callable(
            self._loaded, **self._options.kwargs.value
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
            made = self._loaded(**self._options.kwargs.value)
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
        if not _callable(self._loaded, [], **self._options.kwargs.value):
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
