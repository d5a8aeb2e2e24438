"""Loading a policy: models by name, weights, special tokens, dropout, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3MoeConfig, pipeline

from mugrpo.config.run import ModelOptions
from mugrpo.config.training import LoRAOptions
from mugrpo.disk.errors import UsageError
from mugrpo.engines.base import Request
from mugrpo.model.policy import Policy, load_policy
from mugrpo.model.pretrained import cached, model_fingerprint, model_path
from mugrpo.model.self_test import can_share_prompts
from tests.builders import PROMPTS, TINY_FORMS, chain_tokenizer, encoded, generated, tiny_policy
from tests.cases import table
from tests.faults.harm import edited, flip_bit, refused, truncate
from tests.runs import Command, write_config


def test_weights_are_fp32_whatever_the_file_holds_and_whatever_the_precision(model):
    policy = load_policy(ModelOptions())
    policy.model.to(torch.bfloat16).save_pretrained(model)
    for precision in ("fp32", "bf16"):
        loaded = load_policy(ModelOptions(path=str(model), precision=precision))
        assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("kept", "sentence"),
    [
        (None, r"^the model \S+ cannot be loaded"),
        (10, r"^the model \S+ cannot be loaded \(.*\); name a whole directory in Hugging"),
        (0, r"^the weights of \S+ lack lm_head\.weight; its files are incomplete$"),
    ],
)
def test_weights_that_are_not_the_models_are_refused(model, kept, sentence):
    """Rows of the head are missing, or all of it; or the file is cut."""
    file = model / "model.safetensors"
    weights = load_file(file)
    head = weights.pop("lm_head.weight")
    if kept:
        weights["lm_head.weight"] = head[:kept].clone()
    save_file(weights, file, metadata={"format": "pt"})
    if kept is None:
        truncate(file)
    with pytest.raises(UsageError, match=sentence):
        load_policy(ModelOptions(path=str(model)))


def test_the_fingerprint_follows_every_file_of_the_model(model):
    options = ModelOptions(path=str(model))
    seen = {model_fingerprint(options), model_fingerprint(options)}
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        flip_bit(model / name)
        seen.add(model_fingerprint(options))
    assert len(seen) == 4


@table("key", ["_attn_implementation", "attn_implementation"])
def test_a_package_for_attention_that_a_config_names_is_not_asked_for(model, key):
    """transformers would import flash_attn, which is not here."""
    edited(model / "config.json", **{key: "flash_attention_2"})
    loaded = load_policy(ModelOptions(path=str(model)))
    assert loaded.model.config._attn_implementation == "sdpa"
    ids = torch.arange(2, 14)[None]
    with torch.no_grad():
        assert torch.equal(loaded.model(ids).logits, load_policy(ModelOptions()).model(ids).logits)


@table("form", ["chain", *TINY_FORMS])
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


def test_a_tokenizer_without_eos_is_refused_and_the_option_sets_one(model):
    edited(model / "tokenizer_config.json", eos_token=None)
    with pytest.raises(UsageError, match=r"has no end-of-sequence .*--model\.eos_token"):
        load_policy(ModelOptions(path=str(model)))
    policy = load_policy(ModelOptions(path=str(model), eos_token="<eos>"))
    assert policy.tokenizer.eos_token_id == 1 and policy.stop_ids == [1]


@table("rank", [0, 4])
def test_what_is_saved_stops_where_responses_stop_in_transformers_pipeline_too(
    model: Path, tmp_path: Path, rank: int
):
    """The option adds a token that the base model goes on after. Processor files go along."""
    (model / "preprocessor_config.json").write_text("{}")
    options = ModelOptions(path=str(model), eos_token="-")
    policy = load_policy(options, lora=LoRAOptions(rank=rank))
    policy.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "preprocessor_config.json").read_text() == "{}"
    generate = pipeline("text-generation", str(tmp_path / "saved"))
    how: dict[str, Any] = {"do_sample": False}
    if rank:  # transformers takes the base model's
        how |= {"generation_config": GenerationConfig.from_pretrained(tmp_path / "saved")}
    ends = []
    for prompt in PROMPTS:
        (ours,) = generated(policy, [Request(encoded(policy, prompt), 0)], temperature=1e-3)
        (theirs,) = generate(prompt, **how, max_new_tokens=48, return_tensors=True)
        ids = theirs["generated_token_ids"][len(encoded(policy, prompt)) :]
        assert ids == ours.ids.tolist()
        ends.append(policy.tokenizer.convert_ids_to_tokens(ids[-1]))
    assert set(ends) == {"-", "<eos>"}


def test_a_mixture_of_experts_says_that_its_routers_loss_is_left_out(tmp_path):
    sizes = {"vocab_size": 24, "hidden_size": 32, "num_hidden_layers": 1, "head_dim": 8}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    config = Qwen3MoeConfig(**sizes, **experts, num_attention_heads=4, router_aux_loss_coef=0.01)
    model = AutoModelForCausalLM.from_config(config)
    Policy(model, chain_tokenizer(), ModelOptions()).save(tmp_path / "moe")
    said: list[str] = []
    policy = load_policy(ModelOptions(path=str(tmp_path / "moe")), said.append)
    assert len(said) == 1 and "router_aux_loss_coef = 0.01" in said[0]
    assert can_share_prompts(policy.model)


@table("form", TINY_FORMS)
def test_dropout_is_off_even_in_training_mode(form):
    # The configs ask for dropout of 0.5; two passes with it would differ.
    policy = tiny_policy(form)
    policy.model.train()
    ids = torch.arange(2, 14)[None]
    assert torch.equal(policy.model(ids).logits, policy.model(ids).logits)


def test_a_model_of_the_cache_is_used_once_it_is_there(monkeypatch, tmp_path, command: Command):
    monkeypatch.setenv("MUGRPO_CACHE", str(tmp_path))
    words = ["train", write_config(tmp_path), "--run-dir", tmp_path / "run"]
    refused(command(*words, "--model.path", "smollm2"), "`make smollm2`")
    assert not (tmp_path / "run").exists()
    options = ModelOptions(path="smollm2")
    with pytest.raises(UsageError, match=r"`make smollm2`.*HuggingFaceTB/SmolLM2-135M-Instruct"):
        model_path(options)
    cached("smollm2").mkdir(parents=True)
    assert model_path(options) == str(tmp_path / "models" / "SmolLM2-135M-Instruct")
