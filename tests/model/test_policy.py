from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken
from transformers import OPTConfig, OPTForCausalLM

from mugrpo.config.run import ModelOptions, PromptOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem
from mugrpo.model.policy import Policy, load_policy
from mugrpo.model.pretrained import EMBEDDED, model_fingerprint
from mugrpo.rollouts.prompts import PromptEncoder
from tests.builders import TINY_FORMS, chain_tokenizer, tiny_policy

PROBLEM = Problem("3+2-1=", "3+2-1=", "4")
PLAIN_IDS = [5, 12, 4, 13, 3, 14]  # <pad> is 0, <eos> 1, "0" to "9" 2 to 11, then + - = ,


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A copy of the embedded model, for tests to damage."""
    policy = load_policy(ModelOptions())
    policy.save(tmp_path)
    return tmp_path


def edit(file: Path, **values: object) -> None:
    """Set keys of a JSON file. None removes a key."""
    stored = json.loads(file.read_text()) | values
    file.write_text(json.dumps({k: v for k, v in stored.items() if v is not None}))


# --- Loading --------------------------------------------------------------------------------------


def test_weights_are_fp32_whatever_the_file_holds_and_whatever_the_precision(model_folder):
    policy = load_policy(ModelOptions())
    policy.model.to(torch.bfloat16).save_pretrained(model_folder)
    for precision in ("fp32", "bf16"):
        loaded = load_policy(ModelOptions(path=str(model_folder), precision=precision))
        assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}


def test_a_missing_model_is_one_sentence_that_names_the_way_out(tmp_path):
    with pytest.raises(UsageError) as caught:
        load_policy(ModelOptions(path=str(tmp_path / "none")))
    message = str(caught.value)
    assert message.startswith(f"there is no model directory {tmp_path}/none")
    assert "name one in Hugging Face format, or a hub id" in message
    assert "\n" not in message


def test_a_folder_that_holds_no_model_is_refused_too(tmp_path):
    (tmp_path / "readme.txt").write_text("nothing here")
    with pytest.raises(UsageError, match=r"the model .* cannot be loaded") as caught:
        load_policy(ModelOptions(path=str(tmp_path)))
    assert "\n" not in str(caught.value)


def truncate_weights(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:1000])


def shrink_head(file: Path) -> None:
    weights = load_file(file)
    weights["lm_head.weight"] = weights["lm_head.weight"][:10].clone()
    save_file(weights, file, metadata={"format": "pt"})


def remove_head(file: Path) -> None:
    weights = load_file(file)
    del weights["lm_head.weight"]
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize("damage", [truncate_weights, shrink_head, remove_head])
def test_weights_that_are_not_the_models_are_refused(model_folder, damage):
    damage(model_folder / "model.safetensors")
    with pytest.raises(UsageError, match=r"cannot be loaded|lack lm_head\.weight"):
        load_policy(ModelOptions(path=str(model_folder)))


def test_the_fingerprint_follows_every_file_of_the_model(model_folder):
    options = ModelOptions(path=str(model_folder))
    before = model_fingerprint(options)
    assert model_fingerprint(options) == before
    seen = {before}
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        file = model_folder / name
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(bytes(data))
        seen.add(model_fingerprint(options))
    assert len(seen) == 4


@pytest.mark.parametrize("form", ["chain", *TINY_FORMS])
def test_saved_weights_come_back_with_their_update(tmp_path, form):
    policy = load_policy(ModelOptions()) if form == "chain" else tiny_policy(form)
    saved = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    policy.save(tmp_path)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(1.0)
    policy.load_weights(tmp_path, 17)
    assert policy.update == 17
    assert all(torch.equal(p, saved[n]) for n, p in policy.model.named_parameters())


def test_weights_of_a_model_of_another_form_are_refused(tmp_path, embedded_policy):
    tiny_policy("llama").save(tmp_path)
    with pytest.raises(UsageError, match="another") as caught:
        load_policy(ModelOptions()).load_weights(tmp_path, 1)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_parameter_that_is_not_finite_is_named(value):
    policy = tiny_policy("llama")
    assert policy.nonfinite_parameter() is None
    name, parameter = list(policy.model.named_parameters())[3]
    with torch.no_grad():
        parameter.view(-1)[-1] = value
    assert policy.nonfinite_parameter() == name


# --- Special tokens -------------------------------------------------------------------------------


def test_a_tokenizer_without_eos_is_refused_and_the_option_sets_one(model_folder):
    edit(model_folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(UsageError, match=r"has no end-of-sequence .*--model\.eos_token"):
        load_policy(ModelOptions(path=str(model_folder)))
    policy = load_policy(ModelOptions(path=str(model_folder), eos_token="<eos>"))
    assert policy.tokenizer.eos_token_id == 1 and policy.stop_ids == [1]


def test_a_tokenizer_without_pad_pads_with_eos_and_says_so_once(model_folder):
    edit(model_folder / "tokenizer_config.json", pad_token=None)
    said: list[str] = []
    policy = load_policy(ModelOptions(path=str(model_folder)), said.append)
    assert policy.pad_id == 1
    assert len(said) == 1 and "no padding token" in said[0]


def test_a_tokenizer_with_pad_uses_it_and_says_nothing():
    said: list[str] = []
    assert load_policy(ModelOptions(), said.append).pad_id == 0
    assert said == []


def test_every_eos_id_of_the_generation_config_stops_a_response(model_folder):
    edit(model_folder / "generation_config.json", eos_token_id=[1, 15])
    assert load_policy(ModelOptions(path=str(model_folder))).stop_ids == [1, 15]


def test_an_eos_id_outside_the_embeddings_is_refused(model_folder):
    # The tokenizer gets a 17th token, id 16, where the model has 16 embeddings.
    tokenizer = chain_tokenizer()
    tokenizer.add_special_tokens({"eos_token": AddedToken("<end>", special=True)})
    tokenizer.save_pretrained(model_folder)
    with pytest.raises(UsageError, match="id 16 is outside the model's 16 embeddings"):
        load_policy(ModelOptions(path=str(model_folder)))


# --- Prompts --------------------------------------------------------------------------------------


def test_a_plain_prompt_is_the_problems_text(embedded_policy):
    encode = PromptEncoder(embedded_policy.tokenizer, 16, PromptOptions())
    assert encode(PROBLEM).tolist() == PLAIN_IDS
    assert embedded_policy.tokenizer.decode(PLAIN_IDS) == PROBLEM.prompt


def test_a_prompt_with_an_id_outside_the_embeddings_is_refused(embedded_policy):
    # "=" has id 14: a model of 14 embeddings has ids 0 to 13.
    encode = PromptEncoder(embedded_policy.tokenizer, 14, PromptOptions())
    with pytest.raises(UsageError, match=r"'3\+2-1=' has token '=' with id 14.* has 14 embeddings"):
        encode(PROBLEM)
    assert PromptEncoder(embedded_policy.tokenizer, 15, PromptOptions())(PROBLEM).max() == 14


def test_an_empty_prompt_is_refused(embedded_policy):
    encode = PromptEncoder(embedded_policy.tokenizer, 16, PromptOptions())
    with pytest.raises(UsageError, match="problem 'p7' has an empty prompt"):
        encode(Problem("p7", "", "0"))


def test_a_chat_form_without_a_template_names_the_two_ways_out(embedded_policy):
    with pytest.raises(UsageError, match=r"no chat template; .*--prompt\.form plain.*template"):
        PromptEncoder(embedded_policy.tokenizer, 16, PromptOptions(form="chat"))


# "," before a message, "+" where the answer begins: ids 15 and 12.
TEMPLATE = (
    "{% for m in messages %},{{ m.content }}{% endfor %}{% if add_generation_prompt %}+{% endif %}"
)
CHAT_IDS = [15, *PLAIN_IDS, 12]


def test_a_template_file_makes_the_prompt_one_user_message(embedded_policy, tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    options = PromptOptions(form="chat", chat_template=str(file))
    encode = PromptEncoder(embedded_policy.tokenizer, 16, options)
    assert encode(PROBLEM).tolist() == CHAT_IDS


def test_a_template_file_takes_precedence_over_the_tokenizers_own(tmp_path):
    tokenizer = chain_tokenizer()
    tokenizer.chat_template = TEMPLATE
    assert PromptEncoder(tokenizer, 16, PromptOptions(form="chat"))(PROBLEM).tolist() == CHAT_IDS
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages[0].role | length }}{{ messages[0].content }}")
    options = PromptOptions(form="chat", chat_template=str(file))
    # "user" has 4 letters, and "4" has id 6
    assert PromptEncoder(tokenizer, 16, options)(PROBLEM).tolist() == [6, *PLAIN_IDS]


@pytest.mark.parametrize("content", [None, b"\xff\xfe not UTF-8"])
def test_an_unreadable_template_file_is_named(embedded_policy, tmp_path, content):
    file = tmp_path / "chat.jinja"
    if content is not None:
        file.write_bytes(content)
    options = PromptOptions(form="chat", chat_template=str(file))
    with pytest.raises(UsageError, match=r"prompt\.chat_template = .*cannot be read") as caught:
        PromptEncoder(embedded_policy.tokenizer, 16, options)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("content", ["{% for m in messages %}", "{{ raise_exception('no') }}"])
def test_a_template_that_jinja_refuses_is_named(embedded_policy, tmp_path, content):
    file = tmp_path / "chat.jinja"
    file.write_text(content)
    options = PromptOptions(form="chat", chat_template=str(file))
    with pytest.raises(UsageError, match="template"):
        PromptEncoder(embedded_policy.tokenizer, 16, options)(PROBLEM)


def test_an_eos_token_that_the_tokenizer_does_not_know_is_named():
    with pytest.raises(UsageError, match="<nope>"):
        load_policy(ModelOptions(eos_token="<nope>"))


# --- Dropout --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", TINY_FORMS)
def test_dropout_is_off_even_in_training_mode(form):
    # The configs ask for dropout of 0.5; two passes with it would differ.
    policy = tiny_policy(form)
    policy.model.train()
    ids = torch.arange(2, 14)[None]
    assert torch.equal(policy.model(ids).logits, policy.model(ids).logits)


def test_dropout_is_off_if_a_module_keeps_its_rate_as_a_number():
    config = OPTConfig(
        vocab_size=16,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        dropout=0.5,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    policy = Policy(OPTForCausalLM(config), chain_tokenizer(), ModelOptions())
    policy.model.train()
    ids = torch.arange(2, 14)[None]
    assert torch.equal(policy.model(ids).logits, policy.model(ids).logits)


def test_the_embedded_model_is_found_by_name():
    named, path = ModelOptions(), ModelOptions(path=str(EMBEDDED["chain"]))
    a, b = (load_policy(options).model.state_dict() for options in (named, path))
    assert all(torch.equal(a[name], b[name]) for name in a)
