"""The adapter inside a model: its layers, its initial values, what is refused, and merging."""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, MambaConfig

from mugrpo.config.run import ModelOptions
from mugrpo.config.training import LoRAOptions
from mugrpo.disk.errors import UsageError
from mugrpo.model import policy as policies
from mugrpo.model.adapter import merged
from mugrpo.model.loading import load_model
from mugrpo.model.policy import load_policy
from mugrpo.optimize.forward import rollout_logprobs
from tests.builders import (
    PROMPTS,
    adapted_policy,
    chain_tokenizer,
    encoded,
    tiny_policy,
    with_adapter,
)
from tests.cases import table
from tests.model.test_architectures import made
from tests.updates import config_of

LORA = LoRAOptions(rank=4)


def logits_of(model: torch.nn.Module, policy) -> torch.Tensor:
    ids_1L = torch.from_numpy(encoded(policy, PROMPTS[0])).long()[None]
    return model(input_ids=ids_1L).logits.detach()


def test_a_new_adapter_has_the_parameters_counted_by_hand_and_changes_no_logprob(
    experience, embedded_policy
):
    """A layer of `in` to `out` has rank x (in + out). The embedded model has three layers with q,
    k, v, o of 128 to 128, gate and up of 128 to 288, and down of 288 to 128: 4 x 256 + 3 x 416 =
    2272 for each rank and layer."""
    for rank in (1, 4):
        policy = load_policy(ModelOptions(), lora=LoRAOptions(rank=rank))
        trained = [p for p in policy.model.parameters() if p.requires_grad]
        assert sum(p.numel() for p in trained) == rank * 3 * 2272
    policy, config = load_policy(ModelOptions(), lora=LORA), config_of()
    ours = rollout_logprobs(policy, experience.rollouts, config)
    theirs = rollout_logprobs(embedded_policy, experience.rollouts, config)
    assert all((a == b).all() for a, b in zip(ours, theirs, strict=True))


def test_the_seed_alone_decides_the_initial_values_and_peft_draws_them_alike():
    drawn = []
    for torch_seed, seed in ((1, 5), (2, 5), (2, 6)):
        torch.manual_seed(torch_seed)
        policy = load_policy(ModelOptions(), lora=LORA, seed=seed)
        assert policy.adapter is not None
        drawn.append({name: t.clone() for name, t in policy.adapter.tensors().items()})
    first, again, other = drawn
    assert all(torch.equal(first[name], again[name]) for name in first)
    for name, tensor in first.items():
        assert torch.equal(tensor, other[name]) == (".lora_B." in name)
        if ".lora_B." in name:
            assert not tensor.any()
        else:  # uniform within 1 / sqrt(in): its standard deviation is that over sqrt(3)
            bound = tensor.shape[1] ** -0.5
            assert 0.95 * bound < tensor.abs().max() <= bound
            assert tensor.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


@table("form", ["gpt2", "qwen3_moe", "chain", "llama"], first=2)  # the first has transposed weights
def test_a_saved_adapter_loads_with_peft_and_here_to_the_same_bits(form: str, tmp_path: Path):
    policy = adapted_policy(form, tmp_path / "base", LORA)
    policy.save(tmp_path / "adapter")
    expected = logits_of(policy.model, policy)
    base = str(policy.model.name_or_path)
    theirs = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter"
    )
    assert torch.equal(logits_of(theirs, policy), expected)
    again = load_policy(ModelOptions(path=base), lora=LORA)
    assert not torch.allclose(logits_of(again.model, policy), expected)
    again.load_weights(tmp_path / "adapter", 7)
    assert torch.equal(logits_of(again.model, policy), expected)
    again.load_weights(base, 0)  # the base model again
    plain = load_policy(ModelOptions(path=base))
    assert torch.equal(logits_of(again.model, policy), logits_of(plain.model, policy))


@table("kind", ["qwen3_moe", "deepseek_v3", "gpt2", "llama"], first=2)  # first, nested adapters
def test_a_merged_model_is_plain_and_has_the_logits_of_base_and_adapter(kind: str, tmp_path: Path):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    plain = made(kind, base)
    policy = with_adapter(ModelOptions(path=str(base)), LORA, std=0.1)
    policy.save(adapter)
    model = merged(load_model(base), adapter)
    assert model.state_dict().keys() == plain.model.state_dict().keys()
    logits, expected = logits_of(model, policy), logits_of(policy.model, policy)
    assert (logits - expected).abs().max() < 1e-4
    assert (logits - logits_of(plain.model, policy)).abs().max() > 0.1


def test_what_4_bits_need_is_asked_for_before_a_merge(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # it is not installed
    with pytest.raises(UsageError, match=r"pip install 'mugrpo\[qlora\]'"):
        merged(torch.nn.Module(), tmp_path, LoRAOptions(rank=4, quantize="nf4"))


def test_a_model_is_put_in_4_bits_before_it_goes_to_the_gpu(tmp_path: Path, monkeypatch):
    """All of it in fp32 may not fit there."""
    made("llama", tmp_path)
    monkeypatch.setitem(sys.modules, "bitsandbytes", Mock())
    monkeypatch.setattr(policies, "device", lambda: "meta")
    places = []

    def quantize(model, lora, place):
        places.append((model.device.type, place))
        raise UsageError("enough")

    monkeypatch.setattr(policies, "quantize", quantize)
    options = ModelOptions(path=str(tmp_path), precision="fp32")
    with pytest.raises(UsageError, match="enough"):
        load_policy(options, lora=LoRAOptions(rank=4, quantize="nf4"))
    assert places == [("cpu", "meta")]


def test_of_a_mixture_of_experts_the_router_is_trained_too_and_that_is_said(tmp_path: Path):
    """With the ranks and alphas that peft gives parameters: those of two layers have twice them."""
    tiny_policy("qwen3_moe").save(tmp_path)
    said: list[str] = []
    policy = load_policy(ModelOptions(path=str(tmp_path)), said.append, lora=LORA)
    named = "the adapter also trains routers and experts: down_proj, gate.weight, gate_up_proj"
    assert named in said
    policy.save(tmp_path / "adapter")
    stored = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert stored["target_parameters"] == ["down_proj", "gate.weight", "gate_up_proj"]
    assert [*stored["rank_pattern"].values()] == [8]
    assert [*stored["alpha_pattern"].values()] == [2 * LORA.alpha]


def test_a_model_that_peft_refuses_and_an_adapter_of_another_form_are_refused(tmp_path: Path):
    config = MambaConfig(vocab_size=24, hidden_size=16, num_hidden_layers=1, state_size=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    chain_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"peft has no adapter .*'out_proj'.* \(lora.rank = 0\)$"):
        load_policy(ModelOptions(path=str(tmp_path)), lora=LORA)
    load_policy(ModelOptions(), lora=LoRAOptions(rank=4, alpha=8)).save(tmp_path)
    with pytest.raises(UsageError, match=r"holds an adapter .*another lora_alpha in"):
        load_policy(ModelOptions(), lora=LORA).load_weights(tmp_path, 1)
