"""Logprobs of models that scale or bound their logits, compared with their own forward pass."""

import torch
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    FalconH1Config,
    Gemma2Config,
    GraniteConfig,
    GraniteMoeConfig,
    HyperCLOVAXConfig,
    LlamaConfig,
    OPTConfig,
)

from mugrpo.config.run import ModelOptions
from mugrpo.model.logprobs import response_logprobs
from mugrpo.model.policy import Policy
from mugrpo.model.shaping import Shaping
from tests.builders import chain_tokenizer, plain_logprobs, tiny_config
from tests.cases import table
from tests.model.test_shared_prompts import RAGGED, difference, gradients, rows

SIZES = {
    "vocab_size": 24,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
STATES = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
MODELS = {
    "llama": (LlamaConfig(**SIZES), Shaping()),
    "gpt2": (tiny_config("gpt2"), Shaping()),
    "opt": (OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=32), Shaping()),
    "cohere": (CohereConfig(**SIZES, logit_scale=0.25), Shaping(0.25)),
    "cohere2": (Cohere2Config(**SIZES, logit_scale=4.0), Shaping(4.0)),
    "granite": (GraniteConfig(**SIZES, logits_scaling=8.0), Shaping(1 / 8)),
    "granitemoe": (GraniteMoeConfig(**SIZES, logits_scaling=0.5), Shaping(2.0)),
    "falcon_h1": (FalconH1Config(**SIZES, **STATES, lm_head_multiplier=0.5), Shaping(0.5)),
    "hyperclovax": (HyperCLOVAXConfig(**SIZES, logits_scaling=3.0), Shaping(3.0)),
    "gemma2": (Gemma2Config(**SIZES, final_logit_softcapping=2.0), Shaping(1.0, 2.0)),
}


@table("name", [*MODELS])
def test_logprobs_and_gradients_are_those_of_the_models_own_forward_pass(name):
    torch.manual_seed(7)
    config, expected = MODELS[name]
    model = AutoModelForCausalLM.from_config(config)
    policy = Policy(model, chain_tokenizer(), ModelOptions())
    assert Shaping.of(model) == expected
    ids, prompt_lengths, mask, _ = rows(RAGGED)
    ours, _ = response_logprobs(policy.model, ids, prompt_lengths, mask, temperature=0.7, chunk=16)
    theirs = torch.zeros_like(ours)
    for row, (start, length) in enumerate(zip(prompt_lengths, mask.sum(-1), strict=True)):
        of_row = ids[row, : start + length]
        theirs[row, :length] = plain_logprobs(policy, of_row[:start], of_row[start:], 0.7)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert difference(gradients(policy, ours), gradients(policy, theirs)) < 1e-5
