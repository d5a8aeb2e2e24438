"""A harness of verifiers that talks to the model in the process of the environment.

verifiers' own "null" harness is the same conversation in a process of its own for every segment,
which takes longer than a small model's answer. The worker adds this folder to its path, so that
`harness.id = "mugrpo-chat"` finds it.
"""

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.null import NullHarness
from verifiers.v1.harnesses.utils.compaction import bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

__all__ = ["ChatHarness"]

_FULL = "maximum context length"  # how vLLM, and the worker, refuse a conversation without room
_clients: list[httpx.AsyncClient] = []  # one for all conversations, made in their event loop


class ChatHarness(NullHarness):  # type: ignore[misc]
    """A conversation with the task's tools. The model's first message without a call ends it."""

    SUPPORTS_TOOL_INTERCEPTION = False

    async def setup(self, runtime: Any) -> None:
        """Prepare nothing: there is no program."""

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Hold the conversation of one segment. See `Harness.launch`."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        timeout = self.config.tool_timeout
        servers = {name: {"url": url, "timeout": timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            tools, dispatch, open_servers = await connect_mcp({"mcpServers": servers}, stack)
            body: dict[str, Any] = {"model": ctx.model, **({"tools": tools} if tools else {})}
            while message := await _said(endpoint, secret, {**body, "messages": messages}):
                messages.append(message)
                calls = message.get("tool_calls") or []
                for call in calls:
                    said = await _called(call["function"], dispatch, open_servers)
                    of = {"tool_call_id": call["id"], "name": call["function"]["name"]}
                    answer = {"role": "tool", **of, "content": said}
                    messages.append(bound_tool_message(answer))
                if not calls:
                    break
        return ProgramResult(exit_code=0, stdout="", stderr="")


async def _said(endpoint: str, secret: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the model's message, or None if the conversation has no room for one."""
    if not _clients:
        limits = httpx.Limits(max_connections=None)
        _clients.append(httpx.AsyncClient(timeout=None, limits=limits, trust_env=False))
    response = await _clients[0].post(
        f"{endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"}
    )
    if response.status_code == 400 and _FULL in response.text:
        return None
    response.raise_for_status()
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return message


async def _called(call: dict[str, Any], dispatch: Any, servers: Any) -> Any:
    """Return what a tool answers, or what is wrong with the call, which the model is told."""
    if call["name"] not in dispatch:
        return f"error: there is no tool {call['name']!r}, only {', '.join(dispatch)}"
    try:
        arguments = json.loads(call["arguments"] or "{}")
    except ValueError as error:
        return f"error: the arguments are not JSON ({error})"
    if not isinstance(arguments, dict):
        return "error: the arguments are not a JSON object"
    return await call_mcp(servers, dispatch, call["name"], arguments)
