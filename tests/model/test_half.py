"""The copy in bf16 that computes for fp32 weights."""

from pathlib import Path

import pytest
import torch
from torch import nn

from mugrpo.config.run import ModelOptions
from mugrpo.config.training import LoRAOptions
from mugrpo.model.adapter import Adapter
from mugrpo.model.half import HalfCopy, begin_in_bf16
from mugrpo.model.loading import load_model
from mugrpo.model.policy import Policy, load_policy
from mugrpo.model.pretrained import EMBEDDED
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.optimize.trainer import Trainer
from tests.builders import tiny_policy
from tests.cases import table
from tests.updates import config_of

TINY = 2.0**-12  # too small a change for the 8 bits of a bf16 number near 1


def line(weight: float) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


def test_the_copy_rounds_the_weights_of_now_and_the_weights_keep_their_bits():
    layer = line(1.0)
    half = HalfCopy(layer)
    with torch.no_grad():
        layer.weight += TINY
    half.renew()
    assert half.working.weight.item() == 1.0 and layer.weight.item() == 1.0 + TINY
    with torch.no_grad():
        layer.weight += 31 * TINY  # 2**-7 in all, the last of the 8 bits
    half.renew()
    assert half.working.weight.item() == 1.0 + 2.0**-7
    assert layer.weight.dtype is torch.float32 and half.working.weight.dtype is torch.bfloat16


def test_gradients_of_several_backward_passes_are_summed_in_fp32():
    """1 and then eight times 2**-9: in bf16, each of the eight would be lost."""
    layer = line(2.0)
    half = HalfCopy(layer)
    for x in [1.0] + 8 * [2.0**-9]:
        half.working(torch.tensor([[x]], dtype=torch.bfloat16)).sum().backward()
        assert half.working.weight.grad is None
    assert layer.weight.grad.dtype is torch.float32
    assert layer.weight.grad.item() == 1.0 + 2.0**-6


def test_under_an_adapter_weights_that_are_not_trained_are_in_bf16_once_and_compute_the_same(
    tmp_path: Path, experience: Experience
):
    """4 bytes for a trained weight, 2 for its copy, 2 for each of the others; the same bits."""
    options, lora = ModelOptions(precision="bf16"), LoRAOptions(rank=4)
    policy = load_policy(options, lora=lora, seed=3)
    assert policy.can_share_prompts
    sizes = {
        tensor.data_ptr(): tensor.nbytes
        for model in (policy.model, policy.working())
        for tensor in model.parameters()
    }
    trained = [p.requires_grad for p in policy.model.parameters()]
    numbers = [p.numel() for p in policy.model.parameters()]
    whole = sum(n for n, is_trained in zip(numbers, trained, strict=True) if not is_trained)
    assert sum(sizes.values()) == 2 * whole + 6 * (sum(numbers) - whole)

    model = load_model(EMBEDDED["chain"])
    plain = Policy(model, policy.tokenizer, options, Adapter(model, lora, EMBEDDED["chain"], 3))
    assert all(p.dtype == torch.float32 for p in plain.model.parameters())
    config = config_of(model={"precision": "bf16"}, lora={"rank": 4})
    ours, theirs = (rollout_logprobs(p, experience.rollouts, config) for p in (policy, plain))
    assert all((a == b).all() for a, b in zip(ours, theirs, strict=True))


@table("rank", [0, 4])
def test_a_policy_that_is_not_trained_has_two_bytes_a_weight_and_the_bits_of_one_that_is(
    tmp_path: Path, experience: Experience, rank: int
):
    """As that of an engine process, with the first weights and with those after an update. Under an
    adapter, its few trained weights have 4 bytes and a copy of 2."""
    options, lora = ModelOptions(precision="bf16"), LoRAOptions(rank=rank)
    config = config_of(model={"precision": "bf16"}, lora={"rank": rank})
    ours = load_policy(options, lora=lora, trained=False)
    weights = {p.data_ptr(): p for m in (ours.model, ours.working()) for p in m.parameters()}
    sizes = {p.dtype: 0 for p in weights.values()}
    for weight in weights.values():
        sizes[weight.dtype] += weight.numel()
    few = sizes.pop(torch.float32, 0)
    assert (
        [*sizes] == [torch.bfloat16] and bool(few) == bool(rank) and few < 0.2 * sum(sizes.values())
    )
    theirs = load_policy(options, lora=lora)
    ids = torch.from_numpy(experience.rollouts[0].prompt_ids).long()[None]
    trainer = Trainer(theirs, config)  # spreads the weights that bf16 rounds to the same
    for update in (1, 2):
        theirs.save(tmp_path / str(update))
        ours.load_weights(tmp_path / str(update), update)
        with ours.evaluating() as engine, theirs.evaluating() as model, torch.no_grad():
            assert torch.equal(engine(input_ids=ids).logits, model(input_ids=ids).logits)
        trainer.step(experience)


STEP = 2.0**-7  # from 1.5 to the next number of bf16


def copies(layer: nn.Linear) -> torch.Tensor:
    return HalfCopy(layer).working.weight.detach().float()


@table("weight", [1.5, 1.5 + STEP / 2, -1.5])  # of bf16, halfway, below 0
def test_weights_begin_at_random_places_so_that_a_quarter_of_the_copies_shows_a_quarter_of_a_step(
    weight,
):
    layer = nn.Linear(64, 64, bias=False)
    nn.init.constant_(layer.weight, weight)
    before = copies(layer)
    begin_in_bf16(layer, seed=3)
    assert torch.equal(copies(layer), before)
    with torch.no_grad():
        layer.weight += STEP / 4
    moved = (copies(layer) - before) / STEP
    assert set(moved.unique().tolist()) == {0.0, 1.0}
    assert moved.mean().item() == pytest.approx(0.25, abs=0.03)  # 4,096 weights: sigma is 0.007


@table(("update", "copy_moves"), [(0, False), (1, True)])
def test_a_small_first_update_does_not_move_weights_that_lie_halfway(
    experience, update, copy_moves
):
    """1 + 2**-8 lies halfway between 1 and the next number, 1 + 2**-7, and is rounded to 1."""
    config = config_of(model={"precision": "bf16"}, optimizer={"lr": 1e-7})
    policy = load_policy(config.model)
    norms = [p for p in policy.model.parameters() if p.ndim == 1]
    for norm in norms:
        nn.init.constant_(norm, 1 + 2.0**-8)
    policy.update = update
    Trainer(policy, config).step(experience)
    working = [p for p in policy.working().parameters() if p.ndim == 1]
    moved = torch.cat([(w != 1).float() for w in working]).mean().item()
    assert moved > 0.3 if copy_moves else moved < 0.01
    assert all((norm != 1 + 2.0**-8).any() for norm in norms)  # the weights themselves have moved


@table("first", ["engine", "trainer"])
def test_whoever_computes_first_the_other_sees_the_weights_after_a_change(first):
    policy = tiny_policy("llama", precision="bf16")
    ids = torch.tensor([[3, 4, 5]])
    with torch.inference_mode(first == "engine"):
        before = policy.working()(ids).logits.sum().item()
    with torch.no_grad():
        policy.model.base_model.norm.weight *= 2  # and so all logits
    policy.weights_changed()
    after = policy.working()(ids).logits.sum()
    after.backward()
    assert after.item() == 2 * before != 0
    assert all(p.grad.abs().sum() > 0 for p in policy.model.parameters() if p.ndim == 2)
