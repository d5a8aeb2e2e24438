"""What is tried of a model once it is loaded, and logits that a model scales or bounds."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from transformers import AutoModelForCausalLM

from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.engines.base import Request
from mugrpo.model.logprobs import response_logprobs
from mugrpo.model.policy import Policy
from mugrpo.model.probe import context_of, untrainable
from mugrpo.model.self_test import can_share_prompts
from mugrpo.model.shaping import Shaping
from tests.builders import chain_tokenizer, generated, plain_logprobs, tiny_config
from tests.cases import table
from tests.model.test_shared_prompts import RAGGED, difference, gradients, rows

THETA = {"rope_theta": 1e4}
LONG = {
    "rope_type": "longrope",
    **THETA,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.5, 3.0, 6.0, 12.0],
}
DYNAMIC = {"rope_type": "dynamic", **THETA, "factor": 2.0}
YARN = {"rope_type": "yarn", **THETA, "factor": 4.0, "original_max_position_embeddings": 32768}


WIDTH = {"hidden_size": 32, "num_attention_heads": 4, "pad_token_id": 0}
ORIGINAL = {"original_max_position_embeddings": 64}  # where Phi3's config has it


def rotating(kind: str) -> Policy:
    """Return a policy whose rows of more than 64 tokens would be rotated by their length."""
    torch.manual_seed(7)
    sizes = {key: value for key, value in SIZES.items() if key != "max_position_embeddings"}
    config = (
        hf.Phi3Config(**sizes, max_position_embeddings=512, rope_parameters=LONG, **ORIGINAL)
        if kind == "longrope"
        else hf.LlamaConfig(**sizes, max_position_embeddings=64, rope_parameters=DYNAMIC)
    )
    return Policy(AutoModelForCausalLM.from_config(config), chain_tokenizer(), ModelOptions())


@table("kind", ["longrope", "dynamic"])
def test_up_to_its_original_length_a_row_is_rotated_alike_and_beyond_it_refused(kind: str):
    policy = rotating(kind)
    assert can_share_prompts(policy.model)
    ids, lengths, mask, prompts = rows([(10, [40, 3]), (60, [4, 2])])
    for numbers in (None, prompts):
        ours, _ = response_logprobs(
            policy.model, ids, lengths, mask, numbers, temperature=1.0, chunk=16
        )
        for row, (start, length) in enumerate(zip(lengths, mask.sum(-1), strict=True)):
            of_row = ids[row, : start + length]
            theirs = plain_logprobs(policy, of_row[:start], of_row[start:])
            torch.testing.assert_close(ours[row, :length], theirs, rtol=1e-5, atol=1e-5)
    ids, lengths, mask, _ = rows([(10, [40]), (60, [5])])
    with pytest.raises(UsageError, match=r"a row has 65 tokens or more, .* more than 64 by their"):
        response_logprobs(policy.model, ids, lengths, mask, temperature=1.0, chunk=16)
    requests = [Request(np.arange(n, dtype=np.int32) % 20 + 2, n) for n in (10, 80)]
    with pytest.raises(UsageError, match=r"a row has 80 tokens or more"):
        generated(policy, requests, max_new_tokens=4)


@table(
    ("config", "length", "shortened"),
    [
        (hf.LlamaConfig(max_position_embeddings=4096), 4096, False),
        (hf.Phi3Config(**WIDTH, **ORIGINAL, rope_parameters=LONG), 64, True),
        (hf.LlamaConfig(max_position_embeddings=2048, rope_parameters=DYNAMIC), 2048, False),
        # as Qwen2.5's model card has it; 4 x 32768
        (hf.Qwen2Config(max_position_embeddings=32768, rope_parameters=YARN), 131072, False),
        (hf.GptOssConfig(), 131072, False),  # 32 x 4096, which its config says, too
        (hf.Gemma3TextConfig(max_position_embeddings=2048), 2048, False),  # by layer type
    ],
)
def test_the_context_is_what_the_config_declares_unless_rotation_depends_on_length(
    config: Any, length: int, shortened: bool
):
    assert (context_of(config)[0], bool(context_of(config)[1])) == (length, shortened)


def scaled(model: Any) -> None:
    """Let a model double its logits where its config does not say so."""
    model.lm_head.register_forward_hook(lambda *of_call: 2 * of_call[-1])


BOTH_WAYS = hf.BertConfig(
    vocab_size=24, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32
)


@table(
    ("config", "change", "reason"),
    [
        (tiny_config("llama"), None, None),
        (tiny_config("llama"), scaled, "computes its logits otherwise than by its head"),
        (BOTH_WAYS, None, "computes a row otherwise beside a longer one"),
    ],
)
def test_a_model_is_refused_if_its_logprobs_would_be_others(config: Any, change: Any, reason: Any):
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config).eval()
    if change:
        change(model)
    fault = untrainable(model, "here")
    assert fault is None if reason is None else fault and reason in fault


SIZES = {
    **{"vocab_size": 24, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
    **{"max_position_embeddings": 128, "initializer_range": 0.3},
    **{"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0},
}
STATES = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
MODELS = {
    "llama": (hf.LlamaConfig(**SIZES), Shaping()),
    "gpt2": (tiny_config("gpt2"), Shaping()),
    "opt": (hf.OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=32), Shaping()),
    "cohere": (hf.CohereConfig(**SIZES, logit_scale=0.25), Shaping(0.25)),
    "cohere2": (hf.Cohere2Config(**SIZES, logit_scale=4.0), Shaping(4.0)),
    "granite": (hf.GraniteConfig(**SIZES, logits_scaling=8.0), Shaping(1 / 8)),
    "granitemoe": (hf.GraniteMoeConfig(**SIZES, logits_scaling=0.5), Shaping(2.0)),
    "falcon_h1": (hf.FalconH1Config(**SIZES, **STATES, lm_head_multiplier=0.5), Shaping(0.5)),
    "hyperclovax": (hf.HyperCLOVAXConfig(**SIZES, logits_scaling=3.0), Shaping(3.0)),
    "gemma2": (hf.Gemma2Config(**SIZES, final_logit_softcapping=2.0), Shaping(1.0, 2.0)),
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
