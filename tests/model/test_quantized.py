"""Models in 4 bits under an adapter, on the CPU: there bitsandbytes runs, and runs are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from mugrpo.config.lora import LoRAOptions
from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.model import quantized
from mugrpo.model.loading import load_model
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.optimize.trainer import Trainer
from tests.builders import adapted_policy, quantize_on_cpus, stale
from tests.updates import assert_same_gradients, config_of, step, weights

LORA = LoRAOptions(rank=4, quantization="nf4")
CONFIG = config_of(lora={"rank": 4, "quantization": "nf4"}, optimizer={"lr": 1e-2})


@pytest.fixture
def on_cpu() -> Iterator[None]:
    devices = quantized.DEVICES
    quantize_on_cpus()
    yield
    quantized.DEVICES = devices


def layers_of(policy: Policy) -> dict[str, torch.nn.Module]:
    from bitsandbytes.nn import Linear4bit

    return {n: m for n, m in policy.model.named_modules() if isinstance(m, Linear4bit)}


def dequantized(policy: Policy, form: str) -> Policy:
    """Return the policy with plain weights, which bitsandbytes has dequantized."""
    from bitsandbytes.functional import dequantize_4bit

    path = str(policy.model.name_or_path)
    plain = load_policy(ModelOptions(path=path), lora=LoRAOptions(rank=4))
    assert plain.adapter is not None and policy.adapter is not None
    for name, tensor in plain.adapter.tensors().items():
        tensor.copy_(policy.adapter.tensors()[name])
    for name, layer in layers_of(policy).items():
        weight = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        with torch.no_grad():
            ours = plain.model.get_submodule(name).weight
            ours.copy_(weight.T if form == "gpt2" else weight)
    return plain


@pytest.mark.parametrize("form", ["chain", "gpt2"])  # the latter has transposed weights and biases
def test_it_computes_with_the_weights_that_bitsandbytes_dequantizes(
    on_cpu, experience, tmp_path: Path, form: str
):
    """Logprobs agree to 1e-5, and gradients of the adapter to 1e-4 of the largest."""
    policy = adapted_policy(form, tmp_path, LORA)
    plain, config = dequantized(policy, form), config_of()
    assert len(layers_of(policy)) == (21 if form == "chain" else 8)
    head = policy.model.get_output_embeddings()
    assert type(head) is torch.nn.Linear and head.weight.dtype == torch.float32
    ours, theirs = (rollout_logprobs(p, experience.rollouts, config) for p in (policy, plain))
    gap = max(abs(a - b).max() for a, b in zip(ours, theirs, strict=True))
    assert gap < 1e-5
    exact = adapted_policy(form, tmp_path, LoRAOptions(rank=4))
    others = rollout_logprobs(exact, experience.rollouts, config)
    assert max(abs(a - b).max() for a, b in zip(ours, others, strict=True)) > 100 * gap
    ours, theirs = (step(stale(experience), config, p)[1] for p in (policy, plain))
    assert ours.keys() == {n for n, _ in policy.model.named_parameters() if ".lora_" in n}
    assert_same_gradients(ours, theirs)


def test_training_moves_the_adapter_alone_and_continues_bit_for_bit(on_cpu, experience, tmp_path):
    trainer = Trainer(load_policy(ModelOptions(), lora=LORA, seed=1), CONFIG)
    before = weights(trainer)
    for _ in range(2):
        assert trainer.step(stale(experience))["skipped"] == 0
    for name, tensor in weights(trainer).items():
        assert torch.equal(tensor, before[name]) != (".lora_" in name)
    trainer.save(tmp_path)
    files = {f.name for f in tmp_path.glob("*.safetensors")}
    assert files == {"adapter_model.safetensors", "optimizer.safetensors"}
    resumed = Trainer(load_policy(ModelOptions(), lora=LORA, seed=2), CONFIG)
    resumed.load(tmp_path)
    for one in (trainer, resumed):
        one.step(experience)
    ours, theirs = weights(trainer), weights(resumed)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_model_computes_in_the_precision_of_the_run(on_cpu):
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        policy = load_policy(ModelOptions(precision=precision), lora=LORA)
        assert {layer.compute_dtype for layer in layers_of(policy).values()} == {dtype}


def test_a_weight_that_is_not_finite_is_found_in_4_bits_too(on_cpu, tmp_path: Path):
    policy, name = load_policy(ModelOptions()), "model.layers.1.mlp.up_proj.weight"
    with torch.no_grad():
        policy.model.get_parameter(name)[3, 7] = float("nan")
    policy.save(tmp_path)
    found = load_policy(ModelOptions(path=str(tmp_path)), lora=LORA).nonfinite_parameter()
    assert found == name.replace("weight", "base_layer.weight")


def test_a_model_that_is_quantized_already_is_refused(on_cpu, tmp_path: Path):
    config = BitsAndBytesConfig(load_in_4bit=True)
    policy = load_policy(ModelOptions())
    load = AutoModelForCausalLM.from_pretrained
    load(policy.model.name_or_path, quantization_config=config).save_pretrained(tmp_path)
    for how in (quantized.quantization_of(LORA, "fp32", "cpu"), None):
        with pytest.raises(UsageError, match="quantized already; name the model that they were"):
            load_model(tmp_path, how)
