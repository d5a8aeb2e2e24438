"""A problem becomes prompt ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray

from mugrpo.config.run import PromptOptions
from mugrpo.errors import UsageError
from mugrpo.records import Problem


class PromptEncoder:
    """Encodes problems under `options`.

    Raises UsageError where a chat form is asked of a tokenizer that has no template, and where
    an id is outside the model's vocabulary.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, options: PromptOptions) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.form = options.form
        self.template: str | None = None
        if options.form == "chat":
            file = options.chat_template
            self.template = tokenizer.chat_template if file is None else _read_template(file)
            if self.template is None:
                raise UsageError(
                    "prompt.form = 'chat', but the tokenizer has no chat template; use "
                    "--prompt.form plain, or name a template file with --prompt.chat_template"
                )

    def __call__(self, problem: Problem) -> NDArray[np.int32]:
        """The prompt of `problem`, [P]."""
        if self.form == "chat":
            ids = self._chat_ids(problem)
        else:
            ids = self.tokenizer(problem.prompt)["input_ids"]
        if not ids:
            raise UsageError(f"problem {problem.id!r} has an empty prompt")
        if max(ids) >= self.vocab_size:
            token = self.tokenizer.convert_ids_to_tokens(max(ids))
            raise UsageError(
                f"problem {problem.id!r} has token {token!r} with id {max(ids)}, but the model "
                f"has {self.vocab_size} embeddings: resize them, or use the model's own tokenizer"
            )
        return np.array(ids, np.int32)

    def _chat_ids(self, problem: Problem) -> list[int]:
        messages = [{"role": "user", "content": problem.prompt}]
        try:
            ids: list[int] = self.tokenizer.apply_chat_template(
                messages,
                chat_template=self.template,
                add_generation_prompt=True,
                return_dict=False,
            )
        except TemplateError as error:
            raise UsageError(
                f"the chat template fails on problem {problem.id!r} ({error}); mend it, or name "
                "another with --prompt.chat_template"
            ) from None
        return ids


def _read_template(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"prompt.chat_template = {file!r} cannot be read: {error}") from None
