"""Chat templates that leave messages out, write marks twice or ask for the date; what is told.

The templates are TRL's copies of those of Qwen, Cohere, GLM, gpt-oss and others.
"""

import datetime
from importlib import resources
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from mugrpo.config.run import PromptOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Message, Problem
from mugrpo.rollouts.notices import notices
from mugrpo.rollouts.prompts import PromptEncoder
from tests.builders import chain_tokenizer
from tests.cases import table

SYSTEM = {"role": "system", "content": "Answer in  French."}
QUESTION = {"role": "user", "content": "What is 2 + 3?\n"}
SAID = {"role": "assistant", "content": "<think>hm</think> It is five."}
TOLD = {"role": "tool", "name": "weather", "content": "Oslo: 3\ndegrees"}
# Writes content in parts alone, as templates of models of images do
PARTS = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}.{% endfor %}"
LAST = "{{ messages[-1].content }}."
NO_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.content }};{% endfor %}"


def template_of(name: str) -> str:
    return (resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text()


def tokenizer_of(template: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes whose turns end with <|im_end|>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain,
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", "<|endoftext|>"],
    )
    tokenizer.chat_template = template
    return tokenizer


def encoder(template: str, *special: str, **options: Any) -> PromptEncoder:
    tokenizer = tokenizer_of(template)
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    return PromptEncoder(tokenizer, len(tokenizer), PromptOptions(form="chat", **options))


def refusal(encode: PromptEncoder, *messages: Any, **columns: Any) -> str:
    prompt = messages[0] if isinstance(messages[0], str) else messages
    with pytest.raises(UsageError) as refused:
        encode(Problem("p", prompt, "5", columns))
    return str(refused.value)


@table(
    "template, messages, lost",
    [
        (PARTS, [QUESTION], "user's message \"What is 2 + 3?"),
        (LAST, [QUESTION, SAID, {**QUESTION, "content": "And 4?"}], "user's message \"What is"),
        (NO_SYSTEM, [SYSTEM, QUESTION], 'system\'s message "Answer in  French."'),
        ("qwen2_5", [{**SYSTEM, "role": "developer"}, QUESTION], "developer's message"),
        ("cohere2", [QUESTION, SAID, TOLD], "tool's message"),
        ("idefics3", [QUESTION], "user's message"),
        ("{{ messages[0].content[:6] }}", [QUESTION], "user's message"),
    ],
)
def test_a_message_that_the_template_leaves_out_is_named(template: str, messages: Any, lost: str):
    template = template if "{" in template else template_of(template)
    said = refusal(encoder(template), *messages)
    assert f"leaves the {lost}" in said and "--prompt.allow_missing true" in said
    encode = encoder(template, allow_missing=True)
    assert encode.text(Problem("p", tuple(messages), "5")) is not None


@table(
    "name", ["qwen2_5", "qwen3", "llama3_1", "gemma3", "gptoss", "glm4moe", "deepseekv3", "lfm2"]
)
def test_templates_of_models_write_all_that_they_get(name: str):
    """Blanks at the ends go, and so does what a model has thought."""
    encode = encoder(template_of(name))
    written = encode.text(Problem("p", (SYSTEM, QUESTION, SAID, QUESTION), "5"))
    assert written.count("What is 2 + 3?") == 2 and "It is five." in written


def test_what_a_prompt_may_ask_for_is_no_mark_and_a_tools_answer_may_be_json():
    encode = encoder(template_of("llama3_1"))
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}, "type": "function"}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert r"Oslo: 3\ndegrees" in encode.text(Problem("p", (QUESTION, called, TOLD), "5"))
    encode = encoder(template_of("qwen3"))
    text = "Think within <think> and </think>, call <tool_call>, and strike <s>this</s>."
    assert text in encode.text(Problem("p", text, "5"))


def test_keys_of_messages_that_are_not_written_are_said():
    encode = encoder(template_of("qwen3"))
    asked = {**QUESTION, "name": "Ada", "persona": "a curious child"}
    thought = {"role": "assistant", "content": "5", "reasoning_content": "2 and 3 are 5"}
    problem = Problem("p", (asked, thought, {**QUESTION, "content": "And 4?"}), "5")
    (said,) = notices(encode, [encode.tokenizer.eos_token_id], [problem])
    assert "leaves out 'name', 'persona', 'reasoning_content' of messages" in said


QWEN = "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n"


@table(
    "template, special, prompt, mark, remedy",
    [
        ("qwen2_5", (), QWEN, "<|im_end|>", "--prompt.form plain"),
        ("qwen2_5", (), f"{QWEN}It is", "<|im_end|>", "take it out"),
        ("qwen2_5", (), ({**QUESTION, "content": QWEN},), "<|im_end|>", "take it out"),
        ("qwen2_5", (), ({**SYSTEM, "content": "<|im_start|>"}, QUESTION), "<|im_start|>", "take"),
        ("phi3", (), "<|user|>\nHi<|end|>\n<|assistant|>\n", "<|end|>\n<|assistant|>", "plain"),
        ("glm4moe", ("<|user|>",), "[gMASK]<sop><|user|>\nHi<|assistant|>\n", "<|user|>", "plain"),
    ],
)
def test_a_prompt_that_a_template_has_written_is_refused(template, special, prompt, mark, remedy):
    encode = encoder(template_of(template), *special)
    said = refusal(encode, *([prompt] if isinstance(prompt, str) else prompt))
    assert f"holds {mark!r}" in said and remedy in said


def test_thinking_is_switched_off_by_an_option_or_a_column():
    """Qwen3's template writes the empty thought, as its documentation says."""
    thinks, does_not = (
        encoder(template_of("qwen3"), chat_template_kwargs=kwargs)
        for kwargs in ({}, {"enable_thinking": False})
    )
    problem, off = (Problem("p", "2+3", "5", c) for c in ({}, {"chat_template_kwargs": "[]"}))
    assert not thinks.text(problem).endswith("</think>\n\n")
    assert does_not.text(problem).endswith("<think>\n\n</think>\n\n")
    for column in ({"enable_thinking": False}, '{"enable_thinking": false, "unset": null}'):
        off = Problem("p", "2+3", "5", {"chat_template_kwargs": column})
        assert thinks.text(off) == does_not.text(problem)
    on = Problem("p", "2+3", "5", {"chat_template_kwargs": {"enable_thinking": True}})
    assert does_not.text(on) == thinks.text(problem)


@table("column", [{"thinks": 1}, {"messages": []}, {"tools": []}, ["enable_thinking"], "yes"])
def test_variables_that_no_template_can_get_are_refused(column: Any):
    said = refusal(encoder(template_of("qwen3")), "2+3", chat_template_kwargs=column)
    assert "chat_template_kwargs" in said and ("leave it out" in said or "rename it" in said)
    tokenizer = tokenizer_of(template_of("qwen3"))  # an environment's turns lack the problem
    chat = PromptOptions(form="chat")
    encode = PromptEncoder(tokenizer, len(tokenizer), chat, tools=lambda: [])
    said = refusal(encode, "2+3", chat_template_kwargs={"enable_thinking": False})
    assert "set prompt.chat_template_kwargs for all problems" in said


DATED = "{{ strftime_now('%d %b %Y') }}: {{ messages[0].content }}"


@table(
    "options, day",
    [({"date": "2025-02-03"}, "03 Feb 2025"), ({}, f"{datetime.date.today():%d %b %Y}")],
)
def test_a_templates_clock_stands(options: dict[str, Any], day: str):
    encode = encoder(DATED, **options)
    assert encode.text(Problem("p", "2+3", "5")) == f"{day}: 2+3"
    again = encoder(DATED, **encode.options.model_dump(include={"date"}))
    assert again.text(Problem("p", "2+3", "5")) == f"{day}: 2+3"
    assert encoder(template_of("qwen3")).options.date is None  # it has no clock
    assert encoder(template_of("llama3_2")).options.date is not None


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
