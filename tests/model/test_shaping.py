"""Logprobs of models that scale or bound their logits, compared with their own forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    GraniteMoeConfig,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
)

from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.model.half import HalfCopy
from mugrpo.model.logprobs import response_logprobs
from mugrpo.model.policy import Policy
from mugrpo.model.shaping import Shaping, shaping_of
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
MODELS = {
    "llama": (LlamaConfig(**SIZES), Shaping()),
    "gpt2": (tiny_config("gpt2"), Shaping()),
    "opt": (OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=32), Shaping()),
    "cohere": (CohereConfig(**SIZES, logit_scale=0.25), Shaping(0.25)),
    "cohere2": (Cohere2Config(**SIZES, logit_scale=4.0), Shaping(4.0)),
    "granite": (GraniteConfig(**SIZES, logits_scaling=8.0), Shaping(1 / 8)),
    "granitemoe": (GraniteMoeConfig(**SIZES, logits_scaling=0.5), Shaping(2.0)),
    "gemma2": (Gemma2Config(**SIZES, final_logit_softcapping=2.0), Shaping(1.0, 2.0)),
}


class Muse(LlamaForCausalLM):
    """Scales the head's input and its output, and bounds the logits; or what `fault` says."""

    fault = ""

    def forward(self, input_ids: torch.Tensor, **options: Any) -> Any:
        outputs = self.model(input_ids, **options)
        hidden = outputs.last_hidden_state * 0.5
        if self.fault == "a layer":
            hidden = torch.relu(hidden)
        if self.fault == "a norm":
            hidden = torch.nn.functional.rms_norm(hidden, hidden.shape[-1:])
        outputs.logits = 3 * torch.tanh(self.lm_head(hidden) * 6 / 3)
        if self.fault == "another bound":
            outputs.logits = outputs.logits.clamp(-1, 1)
        if self.fault == "fewer tokens":
            outputs.logits = outputs.logits[..., :-1]
        return outputs


def model_of(name: str) -> Any:
    torch.manual_seed(7)
    if name == "muse":
        return Muse(LlamaConfig(**SIZES))
    return AutoModelForCausalLM.from_config(MODELS[name][0])


@table("name", [*MODELS, "muse"])
def test_logprobs_and_gradients_are_those_of_the_models_own_forward_pass(name):
    policy = Policy(model_of(name), chain_tokenizer(), ModelOptions())
    found = shaping_of(policy.model)
    expected = Shaping(3.0, 3.0) if name == "muse" else MODELS[name][1]
    assert found.scale == pytest.approx(expected.scale, rel=1e-6)
    assert found.cap == (expected.cap and pytest.approx(expected.cap, rel=1e-6))
    ids, prompt_lengths, mask, _ = rows(RAGGED)
    ours, _ = response_logprobs(policy.model, ids, prompt_lengths, mask, temperature=0.7, chunk=16)
    theirs = torch.zeros_like(ours)
    for row, (start, length) in enumerate(zip(prompt_lengths, mask.sum(-1), strict=True)):
        of_row = ids[row, : start + length]
        theirs[row, :length] = plain_logprobs(policy, of_row[:start], of_row[start:], 0.7)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert difference(gradients(policy, ours), gradients(policy, theirs)) < 1e-5


@table("fault", ["a layer", "a norm", "another bound", "fewer tokens"])
def test_a_model_whose_logits_are_anything_else_is_refused(fault):
    model = model_of("muse")
    model.fault = fault
    with pytest.raises(UsageError, match="the logits of Muse are more than the product"):
        Policy(model, chain_tokenizer(), ModelOptions())
    assert "forward" not in {*vars(model.model), *vars(model.lm_head)}


def test_no_weight_is_asked():
    """So ranks that have none yet find the same, and a copy in bf16 what the model has."""
    with torch.device("meta"):
        empty = model_of("granite")
    assert shaping_of(empty) == Shaping(1 / 8)
    model = model_of("granite")
    shaping_of(model)
    assert vars(HalfCopy(model).working)["mugrpo_shaping"] == Shaping(1 / 8)
