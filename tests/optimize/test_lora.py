"""Updates of an adapter: their gradient, what stays as it is, and what is saved."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mugrpo.config.run import ModelOptions
from mugrpo.config.training import LoRAOptions
from mugrpo.disk.errors import UsageError
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.trainer import Trainer
from tests.builders import adapted_policy, save, stale
from tests.cases import cross
from tests.faults.harm import truncate
from tests.updates import config_of, step

LORA = LoRAOptions(rank=4, alpha=8)  # alpha / rank = 2
CONFIG = config_of(
    lora={"rank": 4, "alpha": 8},
    optimizer={"lr": 1e-2, "weight_decay": 0.1, "lr_schedule": "linear", "warmup_updates": 2},
    schedule={"stages": 1, "batches_per_stage": 6},
)


def layers_of(policy: Policy) -> list[str]:
    names = (name for name, _ in policy.model.named_modules())
    return [name.removesuffix(".lora_A") for name in names if name.endswith(".lora_A")]


@cross(form=["chain", "gpt2", "llama"], objective=["topr", "grpo"])
def test_the_gradient_is_that_of_the_merged_weights_by_the_chain_rule(
    experience, tmp_path: Path, form: str, objective: str
):
    """With W' = W + 2 B A: dL/dA = 2 B^T dL/dW' and dL/dB = 2 dL/dW' A^T, in fp64 to 1e-6."""
    policy = adapted_policy(form, tmp_path, LORA)
    merged = load_policy(ModelOptions(path=str(policy.model.name_or_path)))
    policy.model.double()
    merged.model.double()
    ours, plain = (dict(p.model.named_parameters()) for p in (policy, merged))
    flipped = form == "gpt2"  # it stores W^T
    with torch.no_grad():
        for layer in layers_of(policy):
            a, b = (ours[f"{layer}.lora_{x}.default.weight"] for x in "AB")
            plain[f"{layer}.weight"] += 2 * ((b @ a).T if flipped else b @ a)
    config = config_of({"name": objective})
    metrics, adapters = step(stale(experience), config, policy)
    expected, dense = step(stale(experience), config, merged)
    assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    layers = layers_of(policy)
    before = adapted_policy(form, tmp_path, LORA).model.double().state_dict()
    assert len(adapters) == 2 * len(layers) > 0
    for layer in layers:
        grad = dense[f"{layer}.weight"].T if flipped else dense[f"{layer}.weight"]
        names = [f"{layer}.lora_{x}.default.weight" for x in "AB"]
        a, b = (before[name] for name in names)
        for name, by_hand in zip(names, (2 * b.T @ grad, 2 * grad @ a.T), strict=True):
            assert by_hand.norm() > 0
            assert (adapters[name] - by_hand).norm() < 1e-6 * by_hand.norm(), name


def test_a_checkpoint_holds_the_adapter_its_moments_and_nothing_of_the_model(experience, tmp_path):
    trainer = Trainer(load_policy(ModelOptions(), lora=LORA), CONFIG)
    for _ in range(2):
        trainer.step(stale(experience))
    save(trainer, tmp_path)
    sizes = {f.name: f.stat().st_size for f in tmp_path.iterdir()}
    trained = 4 * 3 * 2272  # see test_adapter
    assert 4 * trained < sizes.pop("adapter_model.safetensors") < 4 * trained + 6000
    assert 8 * trained < sizes.pop("optimizer.safetensors") < 8 * trained + 25_000
    assert sum(sizes.values()) < 20_000
    names = [n for n, p in trainer.policy.model.named_parameters() if p.requires_grad]
    moments = load_file(tmp_path / "optimizer.safetensors").keys() - {"rng/cpu"}
    assert moments == {f"{n}/{key}" for n in names for key in ("step", "exp_avg", "exp_avg_sq")}
    saved = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (saved["r"], saved["lora_alpha"], saved["peft_type"]) == (4, 8, "LORA")


def test_an_adapter_whose_weights_are_missing_or_damaged_is_refused(tmp_path: Path):
    policy = adapted_policy("chain", tmp_path, LORA)
    policy.save(tmp_path / "saved")
    weights = tmp_path / "saved" / "adapter_model.safetensors"
    for harm in (truncate, Path.unlink):
        harm(weights)
        with pytest.raises(UsageError, match="safetensors cannot be read"):
            policy.load_weights(tmp_path / "saved", 1)
