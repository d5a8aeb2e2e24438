"""Encode problems as prompt ids."""

import datetime
import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugrpo.config.run import PromptOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Message, Problem
from mugrpo.tasks.cells import literal, present, shown

ASKED: Message = {"role": "user", "content": "mugrpo-asks-this"}  # what a template is tried with
SAID = "mugrpo-said-this"  # stands for a message of the model in what a template writes
SHORT = "a short conversation"  # what errors call one of these
_VARIABLES = "chat_template_kwargs"  # a column, under TRL's name
_CLOCK = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")
_SHORTEST_MARK = 3  # characters; what is shorter may stand in any text


class PromptEncoder:
    """An encoder of problems as prompts of at most `limit` tokens (None for no limit).

    Raises UsageError if the chat form is chosen and there is no readable template, if a problem
    cannot be written in the chosen form, or if an id is outside the model's vocabulary.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int,
        options: PromptOptions,
        limit: int | None = None,
        tools: Callable[[], Sequence[Mapping[str, Any]]] | None = None,
        *,
        why: str = "",
        unread: Sequence[str] = (),
    ) -> None:
        """Prepare an encoder. `tools` returns the schemas that the chat template gets.

        `why` says what makes the model's context so short, after a comma. `unread` are tokens that
        stand for images, which no prompt may have.
        """
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.options = options  # with a date, if the template asks for one
        self.limit = limit
        self._tools = tools
        self._why = why
        self._unread = unread
        self.template: str | None = None
        if options.form == "chat":
            file = options.chat_template
            own = _own_template(tokenizer) if file is None else read_template(file)
            if own is None:
                raise UsageError(
                    "prompt.form = 'chat', but the tokenizer has no chat template; use "
                    "--prompt.form plain, or name a template file with --prompt.chat_template"
                )
            self.template = self._dated(own)
            self._require_known(options.chat_template_kwargs, "prompt.chat_template_kwargs")

    def __call__(self, problem: Problem) -> NDArray[np.int32]:
        """Return the prompt ids of `problem`, [P]: the last `limit` if `overlong` is "truncate"."""
        ids = self._ids(problem, self.text(problem))
        if self.options.overlong == "truncate" and self.limit is not None:
            ids = ids[-self.limit :]
        return self.checked(ids, f"problem {problem.id!r}")

    @cached_property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The schemas of the tools that a chat template tells the model about."""
        return self._tools() if self._tools and self.options.form == "chat" else ()

    def checked(self, ids: Sequence[int], source: str) -> NDArray[np.int32]:
        """Return `ids` as an array. Raises UsageError if one is outside the model's vocabulary."""
        if ids and max(ids) >= self.vocab_size:
            token = self.tokenizer.convert_ids_to_tokens(max(ids))
            raise UsageError(
                f"{source} has token {token!r} with id {max(ids)}, but the model "
                f"has {self.vocab_size} embeddings: resize them, or use the model's own tokenizer"
            )
        return np.array(ids, np.int32)

    def ids_of(self, response: str) -> list[int]:
        """Return the ids of a response, without those that the tokenizer adds to a text."""
        ids: list[int] = self.tokenizer(response, add_special_tokens=False, verbose=False)[
            "input_ids"
        ]
        return ids

    def fitting(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return the problems whose prompts leave room for a response.

        Raises UsageError if some do not and `overlong` is "error", if none does, if a problem
        cannot be written in the chosen form, or if an id is outside the model's vocabulary.
        """
        texts, limit = [self.text(problem) for problem in problems], self.limit
        for problem, text in zip(problems, texts, strict=True):
            if seen := next((token for token in self._unread if token in text), None):
                raise UsageError(
                    f"problem {problem.id!r} has {seen}, which stands for an image or sound, but "
                    "models are trained on text alone; leave such problems out"
                )
        if self._may_be_outside:
            for problem, text in zip(problems, texts, strict=True):
                self.checked(self._ids(problem, text), f"problem {problem.id!r}")
        if limit is None or self.options.overlong == "truncate":
            return list(problems)
        fitting, longest = [], 0
        for problem, text in zip(problems, texts, strict=True):
            # A token covers at least one ASCII character, so most texts need not be encoded here.
            short = text.isascii() and len(text) + self._added < limit
            length = 0 if short else len(self._ids(problem, text))
            longest = max(longest, length)
            if length <= limit:
                fitting.append(problem)
        overlong = len(problems) - len(fitting)
        if overlong and (self.options.overlong == "error" or not fitting):
            choices = "drop or truncate" if fitting else "truncate"
            raise UsageError(
                f"{overlong} of {len(problems)} prompts are longer than the {limit} tokens that "
                f"rollouts.max_new_tokens leaves of the model's context{self._why} (the longest "
                f"has {longest}); lower rollouts.max_new_tokens, or choose "
                f"--prompt.overlong {choices}"
            )
        return fitting

    def text(self, problem: Problem) -> str:
        """Return the whole prompt as text, including the special tokens of the template."""
        if self.options.form == "chat":
            return self._chat_text(problem)
        if not isinstance(problem.prompt, str):
            raise UsageError(
                f"problem {problem.id!r} is a conversation; use --prompt.form chat "
                "(a task.system_prompt makes every problem one)"
            )
        return problem.prompt

    def _dated(self, template: str) -> str:
        """Return a template that asks for no date: its clock stands at `options.date`."""
        if not _CLOCK.search(template):
            return template
        day = datetime.date.fromisoformat(self.options.date or f"{datetime.date.today()}")
        self.options = self.options.model_copy(update={"date": f"{day}"})
        return _CLOCK.sub(lambda call: repr(day.strftime(call[2])), template)

    def _require_known(self, variables: Mapping[str, Any], source: str) -> None:
        """Raise UsageError unless the template has these variables, and nothing else sets them."""
        taken = {"messages", *inspect.signature(self.tokenizer.apply_chat_template).parameters}
        for name in variables:
            if name not in (self.template or "") or name in taken - {"documents"}:
                raise UsageError(
                    f"{source} has {name!r}, which is no variable of the chat template; leave it "
                    "out"
                )

    @cached_property
    def _added(self) -> int:
        """The number of tokens that the tokenizer adds to every text."""
        return len(self.tokenizer("")["input_ids"])

    @cached_property
    def _may_be_outside(self) -> bool:
        """Whether the tokenizer has ids outside the model's vocabulary."""
        return bool(max(self.tokenizer.get_vocab().values()) >= self.vocab_size)

    @cached_property
    def suffix(self) -> list[int]:
        """The ids that the tokenizer puts after every text, such as an end-of-sequence token.

        They are no part of a prompt: the model would have to answer after the end.
        """
        whole, bare = self.tokenizer("1")["input_ids"], self.ids_of("1")
        starts = range(len(whole) - len(bare) + 1) if bare else ()
        ends = (n + len(bare) for n in starts if whole[n : n + len(bare)] == bare)
        return list(whole[next(ends, len(whole)) :])

    def _ids(self, problem: Problem, text: str) -> list[int]:
        special = self.options.form == "plain"  # a template writes its own special tokens
        encoded = self.tokenizer(text, add_special_tokens=special, verbose=False)
        ids: list[int] = encoded["input_ids"]
        ids = ids[: len(ids) - len(self.suffix)] if special else ids
        if not ids:
            raise UsageError(f"problem {problem.id!r} has an empty prompt")
        return ids

    def _messages(self, problem: Problem) -> list[Message]:
        """Return the conversation that the chat template writes for `problem`."""
        turns = problem.prompt
        return [{"role": "user", "content": turns}] if isinstance(turns, str) else list(turns)

    def _chat_text(self, problem: Problem) -> str:
        about, messages = f"problem {problem.id!r}", self._messages(problem)
        tools, variables = self._tools_of(problem), self._variables_of(problem)
        self._refuse_written(problem, messages)
        text = self.rendered(
            messages, prompting=True, about=about, tools=tools, variables=variables
        )
        self.require_all(messages, text, about)
        calls = [call for message in messages for call in message.get("tool_calls") or ()]
        for what, named in (("tools", tools), ("tool_calls", calls)):
            names = [name for name in map(_name, named) if name]
            if missing := next((name for name in names if name not in text), None):
                raise UsageError(
                    f"the chat template writes nothing of the {what} of {about}, such as "
                    f"{missing}; name another with --prompt.chat_template"
                )
        return text

    def require_all(self, messages: Sequence[Message], text: str, about: str) -> None:
        """Raise UsageError if a message is not in what the template has written, unless it may."""
        if self.options.allow_missing or (lost := next(_unwritten(messages, text), None)) is None:
            return
        raise UsageError(
            f"the chat template leaves the {lost['role']}'s message {shown(lost['content'])} out "
            f"of {about}; name another with --prompt.chat_template, or accept it with "
            "--prompt.allow_missing true"
        )

    def _refuse_written(self, problem: Problem, messages: Sequence[Message]) -> None:
        """Raise UsageError if a chat template has written the prompt of `problem` already."""
        said = "\n".join(message["content"] for message in messages)
        if (mark := next((mark for mark in self._marks if mark in said), None)) is None:
            return
        opening = self.opening.strip()
        whole = isinstance(problem.prompt, str) and opening and said.rstrip().endswith(opening)
        raise UsageError(
            f"the prompt of problem {problem.id!r} holds {mark!r}, which the chat template writes "
            "between messages, so it would be there twice; "
            + (
                "use --prompt.form plain, as the data have whole prompts"
                if whole
                else "take it out of the data"
            )
        )

    @cached_property
    def opening(self) -> str:
        """What the template writes to begin the model's turn."""
        return self._bare[1].rpartition(ASKED["content"])[2].removeprefix(self.turn_end)

    @cached_property
    def turn_begin(self) -> str:
        """What the template writes before the first message of the user."""
        return self._bare[0].partition(ASKED["content"])[0]

    @cached_property
    def turn_end(self) -> str:
        """What the template writes after a message of the user, whichever turn is next."""
        ends = [text.rpartition(ASKED["content"])[2] for text in self._bare]
        same = takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False))
        return re.sub(r"<[^<>]*$", "", "".join(one for one, _ in same))  # no part of a token

    @cached_property
    def special_tokens(self) -> set[str]:
        """The tokenizer's special tokens, those without a name in its config too."""
        added = self.tokenizer.added_tokens_decoder.values()
        return {token.content for token in added if token.special}

    @cached_property
    def _bare(self) -> tuple[str, str]:
        """A short conversation as the template writes it, without and with the model's turn."""
        try:
            without, whole = (
                self.rendered([ASKED], prompting=prompting, about=SHORT)
                for prompting in (False, True)
            )
        except UsageError:  # it takes no such conversation
            return "", ""
        return without, whole

    @cached_property
    def _marks(self) -> list[str]:
        """What the template writes between messages, and no prompt should hold."""
        without, whole = self._bare
        special = self.special_tokens - {self.tokenizer.bos_token}
        between = whole.rpartition(ASKED["content"])[2].strip()
        marks = sorted(token for token in special if token in without)
        return [*marks, between] if len(between) > _SHORTEST_MARK else marks

    def _variables_of(self, problem: Problem) -> Mapping[str, Any]:
        """Return what a column gives the template for `problem`."""
        found = _cell(problem, _VARIABLES)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise _misread(problem, _VARIABLES, "a table")
        self._require_known(found, f"problem {problem.id!r}: the column {_VARIABLES!r}")
        if self._tools is not None:  # later turns are written for all problems alike
            raise UsageError(
                f"problem {problem.id!r} has a column {_VARIABLES!r}, which no run with an "
                f"environment can use; set prompt.{_VARIABLES} for all problems"
            )
        return found

    def _tools_of(self, problem: Problem) -> Sequence[Mapping[str, Any]]:
        """Return the tools that the template tells about: the environment's, or a column's."""
        found = _cell(problem, "tools")
        if found is None:
            return self.tools
        if not isinstance(found, list) or not all(map(_name, found)):
            raise _misread(problem, "tools", "a list of JSON schemas of functions")
        if self.tools and found:
            raise UsageError(
                f"problem {problem.id!r} has tools in its column 'tools', but only those of the "
                "environment can be called; leave the column out"
            )
        return found

    def rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        prompting: bool,
        about: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return what the chat template writes for `messages`.

        If `prompting`, the beginning of the model's next turn is added. It tells about `tools`, by
        default those of the environment, and gets `variables` over those of the options. Raises
        UsageError, naming what the messages are `about`, if the template fails.
        """
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages),
                tools=list(self.tools if tools is None else tools) or None,
                chat_template=self.template,
                add_generation_prompt=prompting,
                tokenize=False,
                **{**self.options.chat_template_kwargs, **(variables or {})},
            )
        except (MemoryError, UsageError):
            raise
        except Exception as error:  # a template may raise anything
            raise UsageError(
                f"the chat template fails on {about} ({error}); fix it, or name "
                "another with --prompt.chat_template"
            ) from None
        return text


def _cell(problem: Problem, column: str) -> Any:
    """Return what a column has for the template, read if it is text, or None if it is empty."""
    value = problem.columns.get(column)
    if not (value.strip() if isinstance(value, str) else value):
        return None
    read = present(literal(value) if isinstance(value, str) else value)
    return value if read is None else read


def _misread(problem: Problem, column: str, wanted: str) -> UsageError:
    return UsageError(
        f"problem {problem.id!r}: the column {column!r}, which the chat template gets, is "
        f"{shown(problem.columns[column])}, not {wanted}; rename it if it is something else"
    )


def _unwritten(messages: Sequence[Message], text: str) -> Iterator[Message]:
    """Yield the messages whose content a template has not written into `text`.

    Blanks do not count. A template may write a text as JSON, and leave out what a model thought.
    """
    squeezed, seen = " ".join(text.split()), Counter[str]()
    for message in messages:
        content = message["content"]
        if message["role"] == "assistant":
            content = content.rpartition("</think>")[2]
        content = " ".join(content.split())
        seen[content] += 1
        quoted = json.dumps(message["content"], ensure_ascii=False)[1:-1]
        if squeezed.count(content) < seen[content] and quoted not in text:
            yield message


def _name(tool: Any) -> str | None:
    """Return the name of the function that a schema or a call is of, or None if it is neither."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return function.get("name") if isinstance(function, Mapping) else None


def _own_template(tokenizer: Any) -> str | None:
    """Return the tokenizer's chat template, or the one called "default" if it has several."""
    template: str | dict[str, str] | None = tokenizer.chat_template
    return template.get("default") if isinstance(template, dict) else template


def read_template(file: str) -> str:
    """Return the chat template in a file. Raises UsageError if it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"prompt.chat_template = {file!r} cannot be read: {error}") from None
