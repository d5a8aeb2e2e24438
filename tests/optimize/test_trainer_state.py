"""The optimizer's steps, and a trainer's state on disk."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.config.training import LoRAOptions
from mugrpo.disk.publishing import sha256_of
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize import gradient
from mugrpo.optimize.batching import MicroBatch
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.optimizer_state import _rows, write_optimizer
from mugrpo.optimize.trainer import Trainer
from tests.builders import PROMPTS, encoded, save, stale, tiny_policy
from tests.cases import table
from tests.updates import assert_same_gradients, config_of, norm, part, step, weights

CONFIG = config_of(
    optimizer={"lr": 1e-3, "weight_decay": 0.1, "lr_schedule": "linear", "warmup_updates": 2},
    schedule={"stages": 1, "batches_per_stage": 6},
)


def policy_of(form: str, seed: int = 1) -> Policy:
    """Return the embedded model, with or without a new adapter of this seed, or a tiny one."""
    if form in ("chain", "lora"):
        return load_policy(ModelOptions(), lora=LoRAOptions(rank=4 * (form == "lora")), seed=seed)
    return tiny_policy(form)


def moments(trainer: Trainer) -> dict[str, torch.Tensor]:
    names = {p: name for name, p in trainer.policy.model.named_parameters()}
    return {
        f"{names[p]} {key}": value.clone()
        for p, state in trainer.optimizer.state.items()
        for key, value in state.items()
    }


def assert_same(a: Trainer, b: Trainer) -> None:
    """Assert that weights, moments and counts are equal, bit for bit."""
    for ours, theirs in ((weights(a), weights(b)), (moments(a), moments(b))):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    ours, theirs = ((t.update, t.policy.update, t.nonfinite_in_a_row) for t in (a, b))
    assert ours == theirs


@pytest.fixture
def saved(experience: Experience, tmp_path: Path) -> tuple[Trainer, Path]:
    """A trainer after two updates, and the folder where it was saved."""
    trainer = Trainer(load_policy(ModelOptions()), CONFIG)
    for _ in range(2):
        trainer.step(stale(experience))
    save(trainer, tmp_path)
    return trainer, tmp_path


@table("form", ["chain", "llama", "gpt2", "lora"])  # embeddings untied, tied, tied, untied
def test_a_loaded_trainer_continues_bit_for_bit(experience, tmp_path, form):
    trainer = Trainer(policy_of(form), CONFIG)
    for _ in range(2):
        trainer.step(stale(experience))
    save(trainer, tmp_path)
    resumed = Trainer(policy_of(form, seed=2), CONFIG)
    resumed.load(tmp_path)
    assert_same(resumed, trainer)
    for _ in range(2):
        expected, actual = trainer.step(experience), resumed.step(experience)
        assert_same(resumed, trainer)
        timeless = [{k: v for k, v in m.items() if "time" not in k} for m in (expected, actual)]
        assert timeless[0] == timeless[1]


def test_the_count_of_nonfinite_updates_and_the_random_state_are_saved(saved):
    trainer, folder = saved
    trainer.nonfinite_in_a_row = 2
    torch.manual_seed(5)
    save(trainer, folder)
    drawn = torch.rand(3)
    torch.manual_seed(6)
    resumed = Trainer(load_policy(ModelOptions()), CONFIG)
    resumed.load(folder)
    assert resumed.nonfinite_in_a_row == 2
    assert torch.equal(torch.rand(3), drawn)


def test_a_saved_trainer_is_an_ordinary_hugging_face_model_and_holds_no_pickle(saved):
    trainer, folder = saved
    files = list(folder.rglob("*"))
    assert {"model.safetensors", "optimizer.safetensors", "trainer.json"} <= {f.name for f in files}
    assert {file.suffix for file in files} <= {".safetensors", ".json", ".jinja"}
    for file in files:  # not the start of a pickle, nor of a zip, which torch.save writes
        assert file.read_bytes()[:1] != b"\x80" and file.read_bytes()[:2] != b"PK"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt_ids = encoded(trainer.policy, PROMPTS[0])
    assert tokenizer(PROMPTS[0])["input_ids"] == prompt_ids.tolist()
    ids = torch.from_numpy(prompt_ids).long()[None]
    logits = model(input_ids=ids).logits
    assert torch.equal(logits, trainer.policy.model(input_ids=ids).logits)
    before = load_policy(ModelOptions()).model(input_ids=ids).logits
    assert not torch.allclose(logits, before)  # these are the trained weights


def test_the_gradient_norm_is_reported_before_clipping(experience):
    metrics, whole = step(experience, config_of())
    assert metrics["grad_norm"] == pytest.approx(norm(whole), rel=1e-5)
    limit = metrics["grad_norm"] / 3
    clipped_metrics, clipped = step(experience, config_of(optimizer={"max_grad_norm": limit}))
    assert clipped_metrics["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=1e-5)
    assert norm(clipped) == pytest.approx(limit, rel=1e-4)


def test_weight_decay_shrinks_matrices_only(experience):
    # Without a gradient only the decay changes weights, by the factor 1 - lr x decay = 0.98.
    policy = load_policy(ModelOptions())
    before = {n: p.detach().clone() for n, p in policy.model.named_parameters()}
    still = part(experience, [0, 1], [1, 1])
    step(still, config_of(optimizer={"lr": 0.1, "weight_decay": 0.2}), policy)
    for name, parameter in policy.model.named_parameters():
        factor = 0.98 if parameter.ndim == 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor, rtol=1e-6, atol=0)
    assert {p.ndim for p in policy.model.parameters()} == {1, 2}


def test_each_update_uses_its_own_learning_rate(experience):
    # With betas of 0 AdamW moves a weight by lr x g / (|g| + eps): by lr where |g| >> eps.
    optimizer = {"lr": 4e-3, "warmup_updates": 2, "lr_schedule": "linear"}
    optimizer |= {"betas": [0.0, 0.0], "eps": 1e-12}
    schedule = {"stages": 1, "batches_per_stage": 5}
    config = config_of(optimizer=optimizer, schedule=schedule)
    trainer = Trainer(load_policy(ModelOptions()), config)
    # Warm-up 1/2, 2/2 of the peak; then 3/3, 2/3, 1/3 of it: update 5 would have 0.
    for expected in (2e-3, 4e-3, 4e-3, 8e-3 / 3, 4e-3 / 3):
        before = weights(trainer)
        metrics = trainer.step(experience)
        moved = max((w - before[n]).abs().max().item() for n, w in weights(trainer).items())
        assert metrics["lr"] == pytest.approx(expected)
        assert moved == pytest.approx(expected, rel=1e-3)


def poisoned(experience: Experience, value: float) -> Experience:
    """`experience` with one behavior logprob of response 1, which has an advantage, replaced."""
    logprobs = experience.rollouts[1].behavior_logprobs.copy()
    logprobs[3] = value
    rollouts = list(experience.rollouts)
    rollouts[1] = replace(rollouts[1], behavior_logprobs=logprobs)
    return Experience(rollouts, experience.scores)


def nan_policy(monkeypatch: pytest.MonkeyPatch, *updates: int) -> None:
    """Make the policy's own logprobs NaN in these updates, counted from 0."""
    logprobs = gradient.batch_logprobs

    def spoiled(policy: Policy, batch: MicroBatch, config: RunConfig) -> tuple[Any, Any]:
        logprobs_BT, entropy_BT = logprobs(policy, batch, config)
        return logprobs_BT * (math.nan if policy.update in updates else 1), entropy_BT

    monkeypatch.setattr(gradient, "batch_logprobs", spoiled)


@table("where", ["policy", "rollouts"])
def test_a_nonfinite_update_touches_neither_weights_nor_moments(experience, monkeypatch, where):
    trainer, bad = Trainer(load_policy(ModelOptions()), config_of()), experience
    if where == "policy":
        nan_policy(monkeypatch, 1, 2)
    else:
        bad = poisoned(experience, math.nan)
    trainer.step(experience)
    before = weights(trainer)
    moments = [t.clone() for s in trainer.optimizer.state.values() for t in s.values()]
    assert moments
    counts = []
    for case in (bad, bad, experience):
        metrics = trainer.step(case)
        counts.append((metrics["skipped"], trainer.nonfinite_in_a_row, trainer.update))
        if metrics["skipped"]:
            assert not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"]))
            after = [t for s in trainer.optimizer.state.values() for t in s.values()]
            assert all(torch.equal(a, b) for a, b in zip(moments, after, strict=True))
            assert all(torch.equal(w, before[n]) for n, w in weights(trainer).items())
    assert counts == [(1, 1, 2), (1, 2, 3), (0, 0, 4)]
    assert trainer.policy.update == 4


def test_a_token_whose_ratio_is_beyond_e_80_has_no_gradient_and_the_update_is_applied(experience):
    """A ratio of e^1000 would be infinite; clamped, it gives a large loss and no gradient."""
    metrics, gradients = step(poisoned(experience, -1000.0), config_of())
    assert metrics["skipped"] == 0 and 1e30 < metrics["loss"] < math.inf
    # Compare with a ratio that dual clip clips, so that the token has no gradient either.
    objective = {"name": "grpo", "dual_clip": 5.0}
    _, expected = step(poisoned(experience, -20.0), config_of(objective))
    assert_same_gradients(gradients, expected)


@table("cuts", [[7], [4, 3], [3, 3, 1], [2, 0, 5], [7, 0]])
@table("wanted", [slice(0, 7), slice(0, 4), slice(4, 7), slice(2, 5), slice(6, 7), slice(7, 7)])
def test_wanted_rows_come_from_whichever_files_hold_them(tmp_path, cuts, wanted):
    whole = torch.arange(14.0).reshape(7, 2)
    names = [tmp_path / f"{number}.safetensors" for number in range(len(cuts))]
    for name, rows in zip(names, whole.split(cuts), strict=True):
        save_file({"moment": rows.contiguous()}, name)
    files = [safe_open(name, framework="pt") for name in names]
    torch.testing.assert_close(_rows(files, "moment", wanted), whole[wanted], rtol=0, atol=0)


def test_safetensors_reads_what_is_written_and_the_checksum_is_the_files(tmp_path: Path):
    """A name with a character of two bytes, a scalar, no rows, and bytes before larger numbers."""
    tensors = {
        "rng/cpu": torch.arange(5, dtype=torch.uint8),
        "größe/exp_avg": torch.randn(3, 2),
        "w/step": torch.tensor(7.0),
        "w/exp_avg": torch.zeros(0, 4),
    }
    sums = write_optimizer(tmp_path, tensors, (1, 2))
    file = tmp_path / "optimizer-00002-of-00002.safetensors"
    assert sums == {file.name: sha256_of(file)}
    loaded = load_file(file)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(loaded[name], tensor, rtol=0, atol=0)
