"""The messages of a conversation as tokens, and the model's tokens as messages.

Tokens are never made again from text. What the model said stays as it was sampled, and what is said
to it is encoded as a suffix of that.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Message, Problem, text_of
from mugrpo.rollouts.prompts import ASKED, SAID, SHORT, PromptEncoder

Ids = NDArray[np.int32]

_LONGEST = 200  # characters of an error that the model is told
_SAID_TO_IT = "an environment's message"
_TOLD: Message = {"role": "user", "content": "mugrpo-tells-this"}  # what a template is tried with

# The form that Qwen and others use: <tool_call>{"name": ..., "arguments": {...}}</tool_call>.
_TOOL_CALLS: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"content": "text"},
    },
}


class BadCallError(Exception):
    """What the model sampled is no message: a call of a tool in it cannot be read."""

    @property
    def answer(self) -> Message:
        """Return what the model is told."""
        error = str(self).strip().split("\n")[0][:_LONGEST]
        return {"role": "tool", "name": "unknown", "content": str({"error": error})}


class MessageEncoder:
    """An encoder of what is said to the model, and a reader of what the model says.

    In the plain form, messages are their contents, one after the other. In the chat form, the chat
    template writes them, and calls of tools are read with the tokenizer's own response template.
    Raises UsageError if the template does not tell the model about tools that there are, if there
    is no response template for them, or as `suffix` does on a message of a user.
    """

    def __init__(self, prompts: PromptEncoder) -> None:
        self._prompts = prompts
        self._tokenizer = prompts.tokenizer
        self._chat = prompts.options.form == "chat"
        self._answers: dict[str | None, str] = {}  # what the template writes before messages
        if prompts.tools:
            self._require_tools()
        if self._chat:
            self._rest([_TOLD])

    def prompt(self, problem: Problem, messages: Sequence[Message]) -> Ids:
        """Return the prompt ids of `problem`, [P].

        The contents of `messages` are appended to its last message. Raises UsageError if that makes
        it longer than the limit of prompts.
        """
        added, prompt = "".join(message["content"] for message in messages), problem.prompt
        if isinstance(prompt, str):
            problem = replace(problem, prompt=prompt + added)
        else:
            last = {**prompt[-1], "content": prompt[-1]["content"] + added}
            problem = replace(problem, prompt=(*prompt[:-1], last))
        ids, limit = self._prompts(problem), self._prompts.limit
        if limit is not None and len(ids) > limit:
            raise UsageError(
                f"problem {problem.id!r} has a prompt of {len(ids)} tokens with what its "
                f"environment adds, more than the {limit} that rollouts.max_new_tokens leaves of "
                "the model's context; lower rollouts.max_new_tokens"
            )
        return ids

    def suffix(self, last: int, messages: Sequence[Message]) -> Ids:
        """Return the ids of `messages` and of the beginning of the model's next turn, [S].

        `last` is the last id of the model's turn. What the template puts after a turn comes first,
        from behind that id. Raises UsageError if the template fails on `messages`, or if it writes
        earlier messages differently once later ones follow.
        """
        text = "".join(message["content"] for message in messages)
        if self._chat:
            text = self._after(self._tokenizer.decode([last]), messages)
        return self._prompts.checked(self._prompts.ids_of(text), _SAID_TO_IT)

    def plain(self, ids: Ids) -> Message:
        """Return what the model has sampled as a message with nothing but text."""
        return {"role": "assistant", "content": text_of(ids, self._tokenizer)}

    def message(self, before: Ids, ids: Ids) -> Message:
        """Return the message that the model has sampled as `ids`, which end with a stop id.

        `before` are all ids before it. Raises BadCallError if a call of a tool cannot be read.
        """
        if not self._prompts.tools:
            return self.plain(ids[:-1])
        text, prefix = self._tokenizer.decode(ids[:-1]), self._tokenizer.decode(before)
        try:
            parsed: dict[str, Any] = self._tokenizer.parse_response(
                text, self._responses, prefix=prefix, tools=list(self._prompts.tools)
            )
        except MemoryError:
            raise
        except Exception as error:  # it is the model's text, so a parser may fail in any way
            raise BadCallError(f"the call cannot be read: {error}") from None
        return {**parsed, "role": "assistant", "content": parsed.get("content") or ""}

    def _after(self, stop: str, messages: Sequence[Message]) -> str:
        """Return what the template writes after a turn that ends with the text `stop`.

        What ends a turn, or begins the next one, is left out if `stop` says it already: GLM's model
        ends its turn with the <|user|> that begins the user's, and gpt-oss with <|return|> where
        the template writes <|end|>.
        """
        rest, begins = self._rest(messages), self._prompts.turn_begin.rstrip()
        for end in (stop, self._end.strip(), self._prompts.turn_end.strip()):
            opens = end != stop and begins.endswith(end)
            if end and not opens and rest.lstrip().startswith(end):
                return rest.partition(end)[2]
        if stop not in (self._prompts.template or ""):
            return rest
        special = self._prompts.special_tokens
        return rest.removeprefix(next((one for one in special if rest.startswith(one)), ""))

    def _rest(self, messages: Sequence[Message]) -> str:
        """Return what the template writes for `messages` after a turn of the model, with its end.

        A template may leave out thoughts of the model's earlier turns, as Qwen3's does: what was
        sampled is kept. Raises UsageError if that is not all of `messages`, or if it rewrites other
        messages.
        """
        called = next((m.get("name", "tool") for m in messages if m["role"] == "tool"), None)
        turn: dict[str, Any] = {"role": "assistant", "content": SAID}
        if called is not None:  # a template may derive the answer's form from the call
            function = {"name": called, "arguments": {}}
            turn["tool_calls"] = [{"type": "function", "function": function}]
        if called not in self._answers:
            written = self._prompts.rendered([ASKED, turn], prompting=False, about=SHORT)
            self._answers[called] = written.removesuffix(self._end)
        before = self._answers[called]
        whole = self._prompts.rendered([ASKED, turn, *messages], prompting=True, about=_SAID_TO_IT)
        rest = whole.removeprefix(before)
        if not whole.startswith(before):
            kept, _, tail = before.rpartition(SAID)
            head, said, rest = whole.partition(SAID)
            only_thoughts = kept.startswith(head) and ASKED["content"] in head
            if not (said and rest.startswith(tail) and only_thoughts):
                raise UsageError(
                    "the chat template writes earlier messages differently once later ones follow, "
                    "so what was sampled cannot be kept; name another with --prompt.chat_template"
                )
            rest = rest.removeprefix(tail)
        self._prompts.require_all(messages, rest, _SAID_TO_IT)
        return rest

    @cached_property
    def _end(self) -> str:
        """What the template puts after a message of the model."""
        turn = {"role": "assistant", "content": SAID}
        written = self._prompts.rendered([ASKED, turn], prompting=False, about=SHORT)
        return written.rpartition(SAID)[2]

    @cached_property
    def _responses(self) -> dict[str, Any]:
        """The response template, by which a message is read."""
        own: dict[str, Any] | None = getattr(self._tokenizer, "response_template", None)
        if own is not None:
            return own
        return {**_TOOL_CALLS, "start_anchor": self._prompts.opening}

    def _require_tools(self) -> None:
        names = [tool["function"]["name"] for tool in self._prompts.tools]
        written = self._prompts.rendered([ASKED], prompting=True, about=SHORT)
        if missing := [name for name in names if name not in written]:
            raise UsageError(
                f"the chat template does not tell the model about tools such as {missing[0]}; name "
                "another with --prompt.chat_template"
            )
        own = getattr(self._tokenizer, "response_template", None)
        if own is None and "<tool_call>" not in (self._prompts.template or ""):
            raise UsageError(
                "the tokenizer has no response_template, by which calls of tools are read; write "
                "one into its tokenizer_config.json"
            )
