"""Encoding problems, in the room that responses leave. Here one character is one token."""

from dataclasses import replace
from typing import Any

import pytest

from mugrpo.config.run import PromptOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem
from mugrpo.rollouts.prompts import PromptEncoder
from tests.builders import chain_tokenizer
from tests.cases import table
from tests.rollouts.test_templates import with_parts

# <pad> is 0, <eos> 1, "0" to "9" 2 to 11, then + - = ,
SIX, EIGHT, TWO = (Problem(text, text, "4") for text in ("3+2-1=", "1+3+2-1=", "1="))
SIX_IDS = [5, 12, 4, 13, 3, 14]
FREE = [(None, "error"), (None, "drop"), (100, "truncate")]  # no length is checked


def encoder(limit: int | None = None, tokenizer: Any = None, **options: Any) -> PromptEncoder:
    return PromptEncoder(tokenizer or chain_tokenizer(), 16, PromptOptions(**options), limit)


def refusal(encode: PromptEncoder, *problems: Problem) -> str:
    """The one line that refuses to fit `problems`."""
    with pytest.raises(UsageError) as refused:
        encode.fitting(problems)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_prompt_with_an_id_outside_the_embeddings_is_refused():
    # "=" has id 14: a model of 14 embeddings has ids 0 to 13.
    for limit, overlong in FREE:  # before anything is sampled, whatever the length
        encode = PromptEncoder(chain_tokenizer(), 14, PromptOptions(overlong=overlong), limit)
        assert "has token '=' with id 14" in refusal(encode, SIX)
    with pytest.raises(UsageError, match=r"'3\+2-1=' has token '=' with id 14.* has 14 embeddings"):
        encode(SIX)
    assert PromptEncoder(chain_tokenizer(), 15, PromptOptions())(SIX).tolist() == SIX_IDS
    assert chain_tokenizer().decode(SIX_IDS) == SIX.prompt


def test_longer_prompts_are_left_out_or_cut_to_their_last_tokens_if_chosen():
    encode = encoder(6, overlong="truncate")
    assert encode.fitting([EIGHT, SIX]) == [EIGHT, SIX]
    assert encode(EIGHT).tolist() == SIX_IDS  # "1+" is cut from "1+3+2-1="
    assert encode(SIX).tolist() == SIX_IDS
    assert encode(TWO).tolist() == [3, 14]
    assert encoder(6)(EIGHT).tolist() == [3, 12, *SIX_IDS]
    assert encoder(None, overlong="truncate")(EIGHT).tolist() == [3, 12, *SIX_IDS]
    encode = encoder(6, overlong="drop")
    assert encode.fitting([EIGHT, SIX, TWO]) == [SIX, TWO]
    assert refusal(encode, EIGHT).startswith("1 of 1 prompts are longer than the 6 tokens")
    assert encode.fitting([]) == []


TURNS = (
    {"role": "system", "content": "0"},
    {"role": "user", "content": "3+2="},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "5-1="},
)


@table(("limit", "overlong"), [*FREE, (100, "error")])
def test_a_template_that_fails_on_a_prompt_is_reported_before_anything_is_sampled(limit, overlong):
    tokenizer = chain_tokenizer()
    tokenizer.chat_template = (
        "{% if messages | length > 1 %}{{ raise_exception('one turn only') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    encode = encoder(limit, tokenizer, form="chat", overlong=overlong)
    assert encode.fitting([SIX, TWO]) == [SIX, TWO]
    said = refusal(encode, SIX, Problem("c7", TURNS, "4"))
    assert "on problem 'c7' (one turn only)" in said and "--prompt.chat_template" in said


TEMPLATE = (
    "{% for m in messages %}{{ m.role | length }}{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}9{% endif %}"
)


@table("prompt", [SIX.prompt, TURNS, TURNS[1:2]])
def test_the_chat_form_gives_the_ids_that_the_tokenizer_itself_gives(prompt: Any):
    tokenizer = with_parts("<pad> $A <eos>")  # the template writes them itself
    tokenizer.chat_template = TEMPLATE
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    expected = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert encoder(None, tokenizer, form="chat")(Problem("c", prompt, "4")).tolist() == expected
    assert expected[-2:] == [1, 11] and 0 not in expected
    if prompt is TURNS:
        system, assistant = [8, 2, 1], [11, 7, 1]  # "6" "0" <eos>; "9" "5" <eos>
        first, second = [6, 5, 12, 4, 14, 1], [6, 7, 13, 3, 14, 1]  # "4" 3+2= <eos>; "4" 5-1= <eos>
        assert expected == [*system, *first, *assistant, *second, 11]


ADD = {"type": "function", "function": {"name": "+", "parameters": {}}}
TOOLS = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{{ messages[0].content }}"


def test_tools_beside_those_of_an_environment_are_refused():
    tokenizer = chain_tokenizer()
    tokenizer.chat_template = TOOLS
    options = PromptOptions(form="chat")
    encode = PromptEncoder(tokenizer, 16, options, tools=lambda: [ADD])
    assert encode(TWO).tolist() == [12, 3, 14]
    with pytest.raises(UsageError, match="leave the column out"):
        encode(replace(TWO, columns={"tools": [ADD]}))


def test_a_prompt_with_a_token_of_an_image_is_refused():
    encode = PromptEncoder(chain_tokenizer(), 16, PromptOptions(), unread=["+"])
    problems = [Problem("p", "1+2=", "3")]
    assert encode.fitting([TWO]) == [TWO]
    with pytest.raises(UsageError, match=r"'p' has \+, which stands for an image or sound"):
        encode.fitting(problems)
