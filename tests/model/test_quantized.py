"""An adapter on a model in 4 bits: the same gradients as on the weights that these stand for."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from mugrpo.config.load import build_config
from mugrpo.config.run import ModelOptions
from mugrpo.config.training import LoRAOptions
from mugrpo.disk.errors import UsageError
from mugrpo.model.policy import load_policy
from mugrpo.model.quantized import QuantizedLinear
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.run.memory import GIB, held
from tests.builders import PROMPTS, encoded, tiny_policy, with_adapter
from tests.runs import Command, final_weights, finished, killed, read_metrics
from tests.updates import assert_same_gradients, config_of, step

pytest.importorskip("bitsandbytes")  # `make test-all` installs it

NF4 = LoRAOptions(rank=4, quantize="nf4")
RUN = ("--lora.rank", "4", "--lora.quantize", "nf4", "--optimizer.lr", "3e-3")


def test_logprobs_and_gradients_are_those_of_the_weights_that_the_4_bits_stand_for(experience):
    """They are others than the model's own by a tenth of its logprobs' size."""
    quantized, plain = with_adapter(ModelOptions(), NF4), with_adapter(ModelOptions(), NF4)
    own = with_adapter(ModelOptions(), LoRAOptions(rank=4))
    for layer in [m for m in plain.model.modules() if hasattr(m, "base_layer")]:
        linear = torch.nn.Linear(*reversed(layer.base_layer.shape), bias=False)
        linear.weight.data = layer.base_layer.weights()
        layer.base_layer = linear.requires_grad_(False)
    config = config_of()
    logprobs = [rollout_logprobs(p, experience.rollouts, config) for p in (quantized, plain, own)]
    for ours, theirs, other in zip(*logprobs, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
        assert abs(ours - other).max() > 0.01
    ours, theirs = (step(experience, config, p)[1] for p in (quantized, plain))
    assert all(".lora_" in name for name in ours)
    assert_same_gradients(ours, theirs)


def test_a_weight_is_one_of_16_multiples_of_its_blocks_largest():
    layer = torch.nn.Linear(64, 3, bias=False)
    rounded = QuantizedLinear(layer, "cpu").weights() / layer.weight.abs().amax(1, keepdim=True)
    assert len(rounded.unique()) <= 16 and rounded.abs().max() == 1
    assert 0 in rounded and not torch.equal(rounded, rounded.round())


def test_a_copy_in_bf16_shares_what_is_in_4_bits():
    policy = load_policy(ModelOptions(precision="bf16"), lora=NF4)
    ours, theirs = (
        [t for m in model.modules() if isinstance(m, QuantizedLinear) for t in m.buffers()]
        for model in (policy.model, policy.working())
    )
    assert len(ours) == len(theirs) == 2 * 3 * 7  # of three layers with seven matrices
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(ours, theirs, strict=True))
    assert {t.dtype for t in ours} == {torch.uint8, torch.float32}


def test_memory_is_counted():
    """Qwen2.5-0.5B: 494.0 million weights, 136.2 million of them in the embedding, which is the
    head, and 357.8 million in linear layers, at 0.5625 bytes."""
    path = str(Path(__file__).parents[2] / "configs" / "recipes" / "forms" / "qwen2.5-0.5b")
    config = build_config({"model": {"path": path, "precision": "fp32"}, "lora": NF4}, "test")
    model, updates = held(config, 494_032_768)
    assert model == updates == pytest.approx(0.5625 * 357.8e6 + 4 * 136.2e6, rel=1e-3)
    assert model / GIB < 0.7


@pytest.mark.parametrize(
    "other",
    [
        {"lora": {"quantize": "nf4"}},
        {"distributed": {"processes": 2}},
        {"engine": {"name": "vllm"}},
    ],
)
def test_what_does_not_go_with_4_bits_is_refused(other):
    with pytest.raises(UsageError, match=r"lora\.quantize needs lora\.rank"):
        build_config({"lora": {"rank": 4, "quantize": "nf4"}, **other}, "test")


def test_a_model_without_linear_layers_is_refused(tmp_path):
    tiny_policy("gpt2").save(tmp_path)  # its layers are transposed
    with pytest.raises(UsageError, match="no linear layers to put in 4 bits"):
        load_policy(ModelOptions(path=str(tmp_path)), lora=NF4)


def test_a_run_resumes_to_the_same_bits_and_merge_writes_the_policy_that_was_trained(
    tmp_path: Path, command: Command
):
    for name in ("whole", "again"):
        if name == "again":
            killed(tmp_path / name, "gradient", 5, *RUN)
        finished(tmp_path / name, *RUN)
    assert final_weights(tmp_path / "whole") == final_weights(tmp_path / "again")
    first = [r for r in read_metrics(tmp_path / "whole") if r.get("staleness") == 0]
    assert len(first) == 2 and max(line["logprob_gap/max"] for line in first) < 1e-4
    assert command("merge", tmp_path / "whole", tmp_path / "merged").status == 0
    policy = load_policy(ModelOptions(), lora=NF4)
    policy.load_weights(tmp_path / "whole" / "checkpoints" / "update-000006", 6)
    ids_1L = torch.from_numpy(encoded(policy, PROMPTS[0])).long()[None]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    ours, theirs = (model(input_ids=ids_1L).logits for model in (merged, policy.model))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
