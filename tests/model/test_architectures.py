"""Tiny models of every architecture that transformers can make so: what trains, and with what.

docs/models.md has the table: `python -m tests.model.test_architectures` prints it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from mugrpo.config.engines import ContinuousOptions, HFOptions
from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.engines import make_engine
from mugrpo.engines.base import Request
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.optimize.trainer import Trainer
from tests.builders import chain_tokenizer, plain_logprobs, rollout, verdict
from tests.cases import table
from tests.updates import config_of

# By the engine: "hf" decodes what continuous batching cannot. The first ones run by default.
_BOTH = """
qwen3 phi3 granitemoe llama4_text hyperclovax gemma3_text olmo2 gpt_neox glm4 mixtral cohere2
afmoe apertus arcee aria_text beam biogpt bitnet cohere cohere2_moe ctrl dots1
ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo gemma glm glm4_moe gpt2 gpt_bigcode granite
granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe internlm3 jais2 llama minimax_m2
ministral ministral3 mistral nanochat olmo olmo3 olmoe opt persimmon phi qwen2 qwen2_moe
qwen3_moe seed_oss smollm3 solar_open starcoder2
"""
_HF = """
bloom codegen deepseek_v3 diffllama doge falcon falcon_h1 gemma2 gpt_oss gptj granite_swa jetmoe mpt
nemotron olmo_hybrid phimoe qwen3_5_text qwen3_next stablelm vaultgemma xglm
"""
CONTINUOUS, HF = _BOTH.split(), _HF.split()
REFUSED = {
    "no engine": ["bamba", "bart", "falcon_mamba", "jamba", "mamba", "openai-gpt", "rwkv"],
    "rows depend on others": ["bert", "electra", "roberta", "xlnet"],
    "other logits": ["recurrent_gemma", "xlstm"],
}
SENTENCES = {
    "no engine": "neither engine of mugrpo can decode this model",
    "rows depend on others": "computes a row otherwise beside a longer one",
    "other logits": "computes its logits otherwise than by its head",
}
# One for each reason comes first.
CASES = [(kind, reason) for reason, kinds in REFUSED.items() for kind in kinds]
CASES.sort(key=lambda case: REFUSED[case[1]].index(case[0]))

# By the names that configs have for a size.
_NAMES = {
    32: "hidden_size d_model n_embd word_embed_proj_dim embedding_size mamba_d_ssm lru_width",
    48: "intermediate_size ffn_dim d_ff n_inner ffn_hidden_size intermediate_size_mlp",
    24: "vocab_size vocab_size_per_layer_input",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers num_experts_per_tok moe_topk "
    "top_k_experts num_key_value_heads n_groups linear_num_key_heads",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads num_experts "
    "num_local_experts n_routed_experts moe_num_experts qk_rope_head_dim rotary_dim mamba_n_heads "
    "mamba_num_heads linear_num_value_heads",
    8: "head_dim kv_lora_rank q_lora_rank qk_nope_head_dim v_head_dim state_size mamba_d_head "
    "mamba_d_state mamba_head_dim ssm_state_size linear_key_head_dim linear_value_head_dim "
    "attention_window_size hidden_size_per_layer_input",
    16: "moe_intermediate_size shared_expert_intermediate_size",
    1: "n_group topk_group first_k_dense_replace n_shared_experts mamba_n_groups mamba_expand "
    "eos_token_id",
    5: "sliding_window",
    0: "pad_token_id",
    128: "max_position_embeddings n_positions",
}
SIZES = {name: size for size, names in _NAMES.items() for name in names.split()}


def tiny(kind: str) -> Any:
    """Return a tiny config of the type `kind`: each kind of its layers once, or two layers."""
    form: Any = CONFIG_MAPPING[kind]
    known = form().to_dict()
    names = known.keys() | form.attribute_map.keys()
    chosen: dict[str, Any] = {name: size for name, size in SIZES.items() if name in names}
    if "kv_lora_rank" in known:  # each query head has keys of its own
        chosen["num_key_value_heads"] = chosen["num_attention_heads"]
        chosen.pop("head_dim", None)
    if layers := known.get("layer_types"):
        kinds = list(dict.fromkeys(layers))
        chosen["layer_types"] = (2 * kinds)[: max(2, len(kinds))]
        chosen["num_hidden_layers"] = len(chosen["layer_types"])
    return form(**chosen, bos_token_id=None, initializer_range=0.2)


def made(kind: str, folder: Path) -> Policy:
    """Save a tiny model of the type `kind` in `folder`, and load it as a run does."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(tiny(kind)).save_pretrained(folder)
    chain_tokenizer().save_pretrained(folder)
    return load_policy(ModelOptions(path=str(folder)))


@table("kind", [*CONTINUOUS, *HF], first=12)
def test_it_is_decoded_trained_saved_and_loaded_with_its_own_logprobs(kind: str, tmp_path: Path):
    policy, config = made(kind, tmp_path / "base"), config_of()
    engine = make_engine(policy, (ContinuousOptions if kind in CONTINUOUS else HFOptions)(slots=3))
    if kind in HF:
        with pytest.raises(UsageError, match=r"use --engine\.name hf"):
            make_engine(policy, ContinuousOptions())
    requests = [Request(np.arange(2, n, dtype=np.int32), n) for n in (4, 4, 11, 11)]
    decoded = engine.generate(requests, temperature=1.0, max_new_tokens=8)
    ended = dict(pair for step in decoded for pair in step.completions)
    rollouts = [
        rollout(f"p{n // 2}", n % 2, request.prompt_ids, ended[n])
        for n, request in enumerate(requests)
    ]
    ours = rollout_logprobs(policy, rollouts, config)
    for one, logprobs in zip(rollouts, ours, strict=True):
        with torch.no_grad():
            plain = plain_logprobs(policy, one.prompt_ids.tolist(), one.response_ids.tolist())
        np.testing.assert_allclose(one.behavior_logprobs, plain, atol=1e-4)
        np.testing.assert_allclose(logprobs, plain, atol=1e-4)
    metrics = Trainer(policy, config).step(Experience(rollouts, [verdict(n % 2) for n in range(4)]))
    assert metrics["skipped"] == 0 and 0 < metrics["grad_norm"] < float("inf")
    policy.save(tmp_path / "saved")
    again = load_policy(ModelOptions(path=str(tmp_path / "saved")))
    ids = torch.arange(2, 14)[None]
    with torch.no_grad():
        assert torch.equal(again.model(ids).logits, policy.model(ids).logits)
    base = load_policy(ModelOptions(path=str(tmp_path / "base")))
    assert not torch.equal(base.model(ids).logits, again.model(ids).logits)


@table(("kind", "reason"), CASES, first=3)
def test_it_is_refused_with_the_reason(kind: str, reason: str, tmp_path: Path):
    with pytest.raises(UsageError, match=SENTENCES[reason]):
        make_engine(made(kind, tmp_path), HFOptions())


def page() -> str:
    """Return the table of docs/models.md."""
    lines = {"trains, any engine": CONTINUOUS, "trains, `hf`, not `continuous`": HF}
    lines |= {f"refused: {reason}": kinds for reason, kinds in REFUSED.items()}
    rows = (f"| {what} | {', '.join(sorted(kinds))} |" for what, kinds in lines.items())
    return "\n".join(["| | `model_type` |", "| --- | --- |", *rows])


def test_the_page_has_the_table_and_few_words():
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    assert page() in text and len(text.split()) <= 500


if __name__ == "__main__":
    print(f"transformers {transformers.__version__}, torch {torch.__version__}\n\n{page()}")
