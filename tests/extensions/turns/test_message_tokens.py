"""Messages as tokens: beside what TRL makes of them, and beside the template of the whole."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from trl import GRPOTrainer

from mugrpo.config.run import PromptOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import FinishReason, Problem
from mugrpo.engines.base import Completion, Request
from mugrpo.extensions.turns.base import Reply
from mugrpo.extensions.turns.dialogue import EnvironmentDialogue
from mugrpo.extensions.turns.messages import BadCallError, MessageEncoder
from mugrpo.rollouts.prompts import PromptEncoder
from tests.builders import chain_tokenizer
from tests.cases import table
from tests.extensions.turns.in_process import Games
from tests.rollouts.test_templates import PARTS, encoder, template_of, tokenizer_of

INTEGERS = {name: {"type": "integer"} for name in "ab"}
ADD = {"name": "add", "description": "Add two numbers."}
TOOL = {
    "type": "function",
    "function": {**ADD, "parameters": {"type": "object", "properties": INTEGERS}},
}
ANSWERED = {"role": "tool", "name": "add", "content": "5"}
MARKED = "{% for m in messages %}{{ 'T' if loop.revindex == 2 }}{{ m.content }};{% endfor %}"
EARLIER = "writes earlier messages differently"
ASKED = Problem("p", "What is 2 + 3?", "5")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


def prompts_of(template: str, *tools: Any, limit: int | None = None) -> PromptEncoder:
    tokenizer, options = tokenizer_of(template), PromptOptions(form="chat")
    return PromptEncoder(tokenizer, len(tokenizer), options, limit, lambda: tools)


@pytest.fixture
def prompts() -> PromptEncoder:
    return prompts_of(template_of("qwen3_training"), TOOL)


def encoded(prompts: PromptEncoder, text: str) -> np.ndarray:
    return np.array(prompts.ids_of(text), np.int32)


FAMILIES = ("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "nemotron_3_nano")


@table("template", FAMILIES)
@table("messages", [[{"role": "user", "content": "No.\nAgain!"}], [ANSWERED]])
def test_a_models_own_template_gives_the_suffixes_of_trls_training_template(template, messages):
    """Qwen3's leaves out the thoughts of earlier turns, TRL's keeps them: so does a rollout."""
    suffixes = [
        MessageEncoder(prompts := prompts_of(template_of(name), TOOL)).suffix(
            prompts.tokenizer.eos_token_id, messages
        )
        for name in (template, f"{template}_training")
    ]
    assert suffixes[0].tolist() == suffixes[1].tolist()


@table("template", ["qwen3_training", "qwen2_5_training", "qwen3_5_think_training"])
@table("contents", [["5"], ["{'error': 'no'}", "several\nlines"]])
def test_suffixes_of_tools_answers_are_trls(template: str, contents: list[str]):
    prompts = prompts_of(template_of(template), TOOL)
    messages = [{"role": "tool", "name": "add", "content": content} for content in contents]
    theirs = SimpleNamespace(
        processing_class=prompts.tokenizer,
        _tokenizer=prompts.tokenizer,
        chat_template=prompts.tokenizer.chat_template,
        chat_template_kwargs={"tools": [TOOL]},
        _is_vlm=False,
    )
    expected = GRPOTrainer._get_tool_suffix_ids(theirs, messages)
    encoder = MessageEncoder(prompts)
    assert encoder.suffix(prompts.tokenizer.eos_token_id, messages).tolist() == expected


def test_a_conversation_is_what_the_template_writes_for_the_whole():
    prompts = prompts_of(template_of("qwen2_5_training"), TOOL)
    encoder, eos = MessageEncoder(prompts), prompts.tokenizer.eos_token_id
    said = [
        {"role": "assistant", "content": "Four."},
        {"role": "user", "content": "No.\nAgain!"},
        {"role": "assistant", "content": "Five."},
        {"role": "user", "content": "Yes."},
    ]
    ids = encoder.prompt(ASKED, [{"role": "user", "content": " Think."}]).tolist()
    for answer, told in zip(said[::2], said[1::2], strict=True):
        ids += [*prompts.ids_of(answer["content"]), eos]
        ids += encoder.suffix(eos, [told]).tolist()
    asked = {"role": "user", "content": "What is 2 + 3? Think."}
    found = prompts.tokenizer.decode(ids)
    assert found == prompts.rendered([asked, *said], prompting=True, about="")


def test_a_call_is_read_from_the_models_tokens(prompts):
    encoder, eos = MessageEncoder(prompts), prompts.tokenizer.eos_token_id
    before = prompts(ASKED)
    read = partial(encoder.message, before)
    message = read(np.append(encoded(prompts, f"So: {CALL}"), eos))
    assert message["role"] == "assistant" and message["content"].strip() == "So:"
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": {"a": 2, "b": 3}}
    plain = read(np.append(encoded(prompts, "It is 5."), eos))
    assert plain == {"role": "assistant", "content": "It is 5."}
    two = read(np.append(encoded(prompts, f"{CALL}\n{CALL}"), eos))
    assert len(two["tool_calls"]) == 2


@pytest.mark.parametrize("text", ["<tool_call>\n{oops\n</tool_call>", "<tool_call>[1</tool_call>"])
def test_a_call_that_cannot_be_read_is_answered(prompts, text: str):
    ids = np.append(encoded(prompts, text), prompts.tokenizer.eos_token_id)
    encoder = MessageEncoder(prompts)
    with pytest.raises(BadCallError) as bad:
        encoder.message(prompts(ASKED), ids)
    answer = bad.value.answer
    assert answer["role"] == "tool" and "cannot be read" in answer["content"]
    assert len(answer["content"]) < 250
    assert answer["content"] in prompts.tokenizer.decode(
        encoder.suffix(prompts.tokenizer.eos_token_id, [answer])
    )


def test_tools_are_called_over_turns_and_a_bad_call_costs_only_its_turn(prompts):
    """A call that cannot be read, one that can, and the answer, by a scripted model.

    The environment sees the last two. The model reads why the first was not read, then the result.
    """
    eos, said = prompts.tokenizer.eos_token_id, ["<tool_call>{oops</tool_call>", CALL, "It is 5."]

    def answer(seed: int, call: int, message: Any) -> Reply:
        if call == 0:
            return Reply()
        if "tool_calls" not in message:
            return Reply(done=True, reward=1.0)
        return Reply([{"role": "tool", "name": "add", "content": "5"}])

    games = Games(answer, tools=[TOOL])
    dialogue = EnvironmentDialogue(games, MessageEncoder(prompts), 8)
    turns = dialogue.turns(
        max_new_tokens=999, exact=True, temperature=1.0, policy_step=0, check=lambda: None
    )
    turns.begin(0, ASKED, ("p", 0, 0), Request(np.zeros(0, np.int32), 7))
    for index, text in enumerate(said):
        (request,) = turns.requests()
        ids = np.append(encoded(prompts, text), eos).astype(np.int32)
        logprobs = np.full(len(ids), -1.0 - index, np.float32)
        assert request.max_new_tokens == 999 - (len(request.prompt_ids) - len(prompts(ASKED)))
        turns.take([(index, Completion(ids, logprobs, FinishReason.STOP))])
    assert turns.requests() == [] and turns.going == 0
    ((_, rollout),) = turns.ended()
    assert rollout.fault is None
    text = prompts.tokenizer.decode(rollout.response_ids)
    before, between, after = (text.index(one) for one in said)
    assert "cannot be read" in text[before:between]
    assert "<tool_response>\n5\n</tool_response>" in text[between:after]
    steps = [told for name, _, told in games.log if name == "step"]
    found = [("tool_calls" in message, message["content"]) for message in steps]
    assert found == [(True, ""), (False, "It is 5.")]
    for turn, begin in enumerate(rollout.turns):
        assert rollout.behavior_logprobs[begin] == -1.0 - turn
    sampled = prompts.tokenizer.decode(rollout.response_ids[rollout.loss_mask])
    assert sampled == "".join(f"{one}<|im_end|>" for one in said)


# ---- what a template writes ----

GO_ON = {"role": "user", "content": "Go on."}
OF_QWEN = "\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"


@table(
    "name, stop, expected",
    [
        ("qwen2_5", "<|im_end|>", OF_QWEN),
        ("qwen2_5", "<|endoftext|>", OF_QWEN),
        ("glm4moe", "<|user|>", "\nGo on.<|assistant|>"),
        ("glm4moe", "<|observation|>", "\nGo on.<|assistant|>"),
        ("glm4moe", "<|endoftext|>", "<|user|>\nGo on.<|assistant|>"),
        ("gptoss", "<|return|>", "<|start|>user<|message|>Go on.<|end|><|start|>assistant"),
        ("phi3", "<|end|>", "\n<|user|>\nGo on.<|end|>\n<|assistant|>\n"),
        (
            "gemma3",
            "<end_of_turn>",
            "\n<start_of_turn>user\nGo on.<end_of_turn>\n<start_of_turn>model\n",
        ),
    ],
)
def test_a_turns_end_is_not_written_twice(name: str, stop: str, expected: str):
    special = ("<|user|>", "<|observation|>", "<|return|>", "<|end|>", "<end_of_turn>")
    encode = encoder(template_of(name), *special, "<|start|>", "<|assistant|>")
    last = encode.tokenizer.convert_tokens_to_ids(stop)
    assert encode.tokenizer.decode(MessageEncoder(encode).suffix(last, [GO_ON])) == expected


@table(
    "template, words",
    [
        (PARTS, "leaves the user's message"),
        # what is said to the model before its turn is marked, and later is not
        (MARKED, EARLIER),
    ],
)
def test_a_template_that_cannot_write_turns_is_refused_at_the_start(template: str, words: str):
    template = template if "{" in template else template_of(template)
    with pytest.raises(UsageError, match=words):
        MessageEncoder(encoder(template))


def test_special_tokens_stay_in_what_an_environment_gets():
    """But for the end of the text and padding."""
    tokenizer = chain_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>"]})  # id 16
    encode = MessageEncoder(PromptEncoder(tokenizer, 17, PromptOptions()))
    said = np.array([16, 7, 0, 16, 4, 1], np.int32)
    assert encode.plain(said)["content"] == "<think>5<think>2"
    assert encode.message(np.array([3], np.int32), said)["content"] == "<think>5<think>2"
