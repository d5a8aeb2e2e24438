"""A conversation that an environment of verifiers repeats whole, and what it adds to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

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
