"""What is told of tokenizers and chat templates before the first rollout.

<pad> is 0, <eos> 1, "0" to "9" 2 to 11, then + - = ,
"""

from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from mugrpo.config.run import PromptOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Message, Problem
from mugrpo.rollouts.notices import notices
from mugrpo.rollouts.prompts import PromptEncoder
from tests.builders import chain_tokenizer
from tests.cases import table

TURN = "{{ m.role | length }},{{ m.content }}%s"
PROMPTING = "{% if add_generation_prompt %}9,{% endif %}"


def template(end: str = "<eos>", prompting: str = PROMPTING, before: str = "") -> str:
    return f"{before}{{% for m in messages %}}{TURN % end}{{% endfor %}}{prompting}"


def told(
    form: str | None,
    *,
    prompt: str | tuple[Message, ...] = "3=",
    tokenizer: Any = None,
    size: int = 18,
) -> list[str]:
    """Return what is told of a chat template, or of the plain form if it is None."""
    tokenizer = tokenizer or chain_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})  # id 16
    tokenizer.chat_template = form
    options = PromptOptions(form="plain" if form is None else "chat")
    return list(notices(PromptEncoder(tokenizer, size, options), [1], [Problem("p", prompt, "3")]))


def with_parts(single: str) -> Any:
    """Return a tokenizer that puts <pad>, its beginning here, or <eos> around every text."""
    tokenizer = chain_tokenizer()
    tokenizer.bos_token = "<pad>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=single, special_tokens=[("<pad>", 0), ("<eos>", 1)]
    )
    return tokenizer


@table(
    "form",
    [
        None,
        template(),
        "{% for m in messages %}{{ m.content }}{% endfor %}",  # nothing begins or ends a turn
        "{% if messages | length > 1 %}{{ raise_exception('') }}{% endif %}{{ messages }}",
    ],
)
def test_nothing_is_told_of_a_sound_form(form: str | None):
    assert told(form) == []


@table(
    ("case", "parts"),
    [
        ({"form": template("<|im_end|>")}, ("'<|im_end|>'", "'<eos>'", "--model.eos_token '<|im_")),
        ({"form": template("--")}, ("'--'", "--prompt.chat_template")),
        ({"form": template(prompting="", before="3")}, ("ignores add_generation_prompt", "'9,'")),
        ({"form": template(prompting="9,<eos>")}, ("prompts end with '<eos>'",)),
        (
            {"form": None, "tokenizer": with_parts("<pad> $A"), "prompt": "<pad>3="},
            ("prompts begin with '<pad>' twice",),
        ),
    ],
)
def test_what_is_wrong_is_told_with_the_way_out(case: dict[str, Any], parts: tuple[str, ...]):
    sentences = told(**case)
    assert any(all(part in sentence for part in parts) for sentence in sentences), sentences


def test_an_end_of_turn_outside_the_embeddings_is_refused():
    with pytest.raises(UsageError, match=r"'<\|im_end\|>' with id 16, but the model has 16"):
        turn = "{% if m.role == 'assistant' %}<|im_end|>{% endif %}"  # no prompt has it
        told(template(turn), size=16)
