from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from mugrpo.config.preset import PRESETS
from mugrpo.config.run import ModelOptions
from mugrpo.disk.records import Score, Status
from mugrpo.engines.base import Request
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.loss import UpdateLoss
from tests.builders import PROMPTS, encoded, generated, plain_logprobs, rollout, stale, verdict
from tests.updates import assert_same_gradients, config_of, norm, part, step

# Configs of methods, without the reduction.
METHODS: dict[str, dict[str, Any]] = {
    "grpo": {"preset": "grpo"},
    "mu-grpo": {"preset": "mu-grpo", "veto": {"kappa": 0.5}},
    "m2po": {"preset": "m2po", "objective": {"second_moment_limit": 0.1}},
}
OTHERS: dict[str, dict[str, Any]] = {
    **{name: {"preset": name} for name in PRESETS if name not in METHODS},
    "m2po as released": {"objective": {"name": "m2po_released"}},
    "masked correction": {"correction": {"name": "masked", "level": "sequence"}},
    "truncated correction, m2po": {"preset": "m2po", "correction": {"name": "truncated"}},
    "off-policy sequence mask": {"sequence_mask": {"name": "off_policy", "delta": 0.05}},
    "ess step": {"step": {"name": "ess"}},
}
REDUCTIONS = ("token_mean", "sequence_mean", "constant")
MAX_NEW_TOKENS = 48
COST = ("time/", "padding_share", "computed_tokens", "shared_prompt_share")
ALONE = {"share_prompts": False}  # so the computed tokens are those of the responses' rows


def with_stored(experience: Experience) -> Experience:
    """Return `experience`, stale and with stored logprobs of three other policies."""
    names = ("trainer_behavior_logprobs", "proximal_logprobs", "reference_logprobs")
    moved, generator = stale(experience), np.random.default_rng(4)
    stored = {
        name: [
            (r.behavior_logprobs + generator.normal(0, 0.2, len(r.behavior_logprobs))).astype("f4")
            for r in moved.rollouts
        ]
        for name in names
    }
    return replace(moved, stored=stored)


# --- The loss ------------------------------------------------------------------------------------


Tokens = list[list[tuple[torch.Tensor, float]]]  # (ratio, advantage) by response and token


def ratios_and_advantages(policy: Policy, experience: Experience) -> Tokens:
    rewards = [score.reward for score in experience.scores]
    tokens = []
    for i, r in enumerate(experience.rollouts):
        group = rewards[i // 4 * 4 : i // 4 * 4 + 4]
        spread = statistics.stdev(group)
        advantage = (rewards[i] - statistics.mean(group)) / (spread + 1e-4) if spread else 0.0
        logprobs = plain_logprobs(policy, r.prompt_ids, r.response_ids)
        ratios = (logprobs - torch.from_numpy(r.behavior_logprobs)).exp()
        tokens.append([(ratio, advantage) for ratio in ratios])
    return tokens


def vetoed(tokens: Tokens, kappa: float) -> set[tuple[int, int]]:
    """Return the tokens with A < 0 that follow one below kappa and are not below it themselves."""
    removed = set()
    for i, response in enumerate(tokens):
        triggered = False
        for t, (ratio, advantage) in enumerate(response):
            if advantage < 0 and ratio < kappa:
                triggered = True
            elif triggered:
                removed.add((i, t))
    return removed


def masked(tokens: Tokens, limit: float) -> set[tuple[int, int]]:
    """Return the tokens that M2PO drops, one by one, the largest (log r)^2 first."""
    away = {
        (i, t): math.log(ratio.item()) ** 2
        for i, response in enumerate(tokens)
        for t, (ratio, advantage) in enumerate(response)
        if advantage * math.log(ratio.item()) > 0
    }
    removed = set()
    while away and statistics.mean(away.values()) > limit:
        largest = max(away, key=lambda place: away[place])
        removed.add(largest)
        del away[largest]
    return removed


def dense_loss(tokens: Tokens, name: str, reduction: str, removed: set) -> torch.Tensor:
    """Return an update's loss, computed token by token."""
    total = torch.zeros(())
    low, high = {"grpo": (0.8, 1.2), "mu-grpo": (0.0, 5.0), "m2po": (0.0, math.inf)}[name]
    for i, response in enumerate(tokens):
        kept = [token for t, token in enumerate(response) if (i, t) not in removed]
        loss = -sum(min(r * a, r.clamp(low, high) * a) for r, a in kept)
        total = total + (loss / len(response) if reduction == "sequence_mean" else loss)
    counts = {
        "token_mean": sum(len(response) for response in tokens),
        "sequence_mean": len(tokens),
        "constant": len(tokens) * MAX_NEW_TOKENS,
    }
    return total / counts[reduction]


@pytest.mark.parametrize(
    ("name", "reduction"),
    [("grpo", "sequence_mean"), ("mu-grpo", "token_mean"), ("m2po", "constant")],
)
def test_loss_and_gradient_equal_a_dense_computation(experience, name, reduction):
    experience = stale(experience)
    metrics, gradients = step(experience, config_of(**METHODS[name], reduction=reduction))
    policy = load_policy(ModelOptions())
    tokens = ratios_and_advantages(policy, experience)
    removed = {"grpo": set(), "mu-grpo": vetoed(tokens, 0.5), "m2po": masked(tokens, 0.1)}[name]
    expected = dense_loss(tokens, name, reduction, removed)
    expected.backward()
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert_same_gradients(
        gradients, {n: p.grad for n, p in policy.model.named_parameters()}, rtol=1e-3
    )
    key = {"mu-grpo": "vetoed_fraction", "m2po": "masked_fraction"}.get(name)
    if key:
        assert removed and metrics[key] == pytest.approx(len(removed) / metrics["tokens"])


def test_the_loss_of_a_fresh_batch_is_minus_the_mean_advantage_of_its_tokens(experience):
    # Every ratio is 1, so a token's loss is -A. One of four right: the mean is 1/4 and the
    # unbiased variance (9 + 1 + 1 + 1) / 16 / 3 = 1/4, so A = 0.75 / 0.5001 and -0.25 / 0.5001.
    one = part(experience, [0, 1, 2, 3], [1, 0, 0, 0])
    lengths = [len(r.response_ids) for r in one.rollouts]
    advantages = [0.75 / 0.5001] + 3 * [-0.25 / 0.5001]
    expected = -sum(a * n for a, n in zip(advantages, lengths, strict=True)) / sum(lengths)
    metrics, _ = step(one, config_of())
    assert metrics["loss"] == pytest.approx(expected, rel=1e-4)


def test_on_the_policys_own_samples_every_ratio_is_one(experience):
    metrics, _ = step(experience, config_of())
    for key in ("ratio/positive/mean", "ratio/negative/mean", "ratio/positive/max"):
        assert metrics[key] == pytest.approx(1, abs=1e-3)
    assert abs(metrics["kl_behavior"]) < 1e-6 and abs(metrics["tv_token"]) < 1e-4
    assert metrics["vetoed_fraction"] == metrics["clipped_fraction"] == 0


def test_logprobs_are_taken_at_the_temperature_that_was_sampled_at(embedded_policy):
    requests = [Request(encoded(embedded_policy, PROMPTS[0]), seed) for seed in range(4)]
    completions = generated(embedded_policy, requests, temperature=0.5)
    rollouts = [
        rollout("p", i, r.prompt_ids, c)
        for i, (r, c) in enumerate(zip(requests, completions, strict=True))
    ]
    experience = Experience(rollouts, [verdict(reward) for reward in (1, 0, 0, 1)])
    metrics, _ = step(experience, config_of(rollouts={"temperature": 0.5}))
    assert metrics["kl_behavior"] < 1e-6
    metrics, _ = step(experience, config_of(rollouts={"temperature": 1.0}))
    assert metrics["kl_behavior"] > 1e-3


# --- Micro-batches and what is not computed -------------------------------------------------------


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", METHODS)
def test_the_cut_into_micro_batches_changes_no_gradient(experience, name, reduction):
    experience = stale(experience)
    groups = {**METHODS[name], "reduction": reduction}
    whole, together = step(experience, config_of(**groups, optimizer={"micro_batch_tokens": 4096}))
    for budget in (1, 70):  # each response alone; two or three together
        cut, apart = step(experience, config_of(**groups, optimizer={"micro_batch_tokens": budget}))
        assert cut["computed_tokens"] > whole["computed_tokens"]  # the cut differs
        assert_same_gradients(apart, together)
        for key in ("loss", "grad_norm", "kl_behavior", "ratio/negative/max"):
            assert cut[key] == pytest.approx(whole[key], rel=1e-4)
        for key in ("clipped_fraction", "vetoed_fraction", "masked_fraction"):
            assert cut.get(key) == whole.get(key)
    if name == "m2po":
        assert whole["masked_fraction"] > 0  # the pre-pass over all micro-batches had work


@pytest.mark.parametrize("name", OTHERS)
def test_the_cut_into_micro_batches_changes_no_gradient_of_any_method(experience, name):
    experience = with_stored(experience)
    (whole, together), (cut, apart) = (
        step(experience, config_of(**OTHERS[name], optimizer={"micro_batch_tokens": budget}))
        for budget in (4096, 1)
    )
    assert cut["computed_tokens"] > whole["computed_tokens"]
    assert_same_gradients(apart, together, rtol=1e-3)
    keys = {key for key in whole if not key.startswith(COST)}
    assert {key: cut[key] for key in keys} == pytest.approx(
        {key: whole[key] for key in keys}, rel=1e-3, abs=1e-6
    )


def test_the_chunk_of_the_logprobs_changes_no_gradient(experience):
    experience = stale(experience)
    _, small = step(experience, config_of(optimizer={"logprob_chunk_tokens": 5}))
    _, large = step(experience, config_of(optimizer={"logprob_chunk_tokens": 4096}))
    assert_same_gradients(small, large)


@pytest.mark.parametrize("name", [*METHODS, *OTHERS, "kl"])
def test_sharing_prompts_changes_no_gradient_of_any_method(experience, name):
    kl = {"reference": {"name": "kl", "coefficient": 0.5}}
    groups = {**METHODS, **OTHERS, "kl": kl}[name]
    (shared, together), (alone, apart) = (
        step(with_stored(experience), config_of(**groups, optimizer={"share_prompts": share}))
        for share in (True, False)
    )
    assert shared["shared_prompt_share"] > 0.1 and alone["shared_prompt_share"] == 0
    assert_same_gradients(together, apart, rtol=1e-5)
    keys = {key for key in shared if not key.startswith(COST)}
    assert {key: shared[key] for key in keys} == pytest.approx(
        {key: alone[key] for key in keys}, rel=1e-3, abs=1e-6
    )


def test_tokens_that_were_computed_and_shared_by_hand(experience):
    # One group: its prompt of 16 tokens once, and of each response all tokens but the last.
    one = part(experience, [0, 1, 2, 3], [1, 0, 0, 0])
    prompt = len(one.rollouts[0].prompt_ids)
    lengths = [len(r.response_ids) for r in one.rollouts]
    metrics, _ = step(one, config_of())
    assert prompt == 16 and len(set(lengths)) > 1
    computed = prompt + sum(lengths) - 4
    assert metrics["computed_tokens"] == computed
    assert metrics["padding_share"] == 0
    alone = 4 * prompt + sum(lengths)
    assert metrics["shared_prompt_share"] == pytest.approx(1 - computed / alone)
    metrics, _ = step(one, config_of(optimizer=ALONE))
    assert metrics["computed_tokens"] == alone and metrics["shared_prompt_share"] == 0
    assert metrics["padding_share"] == pytest.approx(1 - alone / (4 * (prompt + max(lengths))))


# Not kl-surrogate: its penalty in groups without variance is masked by not computing them.
GROUP_ADVANTAGES = [
    name
    for name, groups in OTHERS.items()
    if config_of(**groups).advantage.zero_variance_mask and name != "kl-surrogate"
]


@pytest.mark.parametrize("name", [*METHODS, *GROUP_ADVANTAGES])
def test_not_computing_responses_of_advantage_zero_changes_no_gradient(experience, name):
    experience, groups = with_stored(experience), {**METHODS, **OTHERS}[name]
    few, skipped = step(experience, config_of(**groups, optimizer=ALONE))
    everything = mock.patch.object(
        UpdateLoss, "has_gradient", lambda _, responses: torch.ones_like(responses.varied)
    )
    with everything:
        every, computed = step(experience, config_of(**groups, optimizer=ALONE))
    size = [len(r.prompt_ids) + len(r.response_ids) for r in experience.rollouts]
    assert every["computed_tokens"] == sum(size)
    assert few["computed_tokens"] == sum(size) - sum(size[8:12])  # group 2 has no variance
    assert few["tokens"] == every["tokens"]
    assert few["loss"] == pytest.approx(every["loss"], rel=1e-5)
    assert_same_gradients(skipped, computed)


@pytest.mark.parametrize("name", ["topr", "asymre"])
def test_advantages_without_the_zero_variance_mask_train_on_groups_without_variance(
    experience, name
):
    flat = part(experience, [8, 9, 10, 11], [0, 0, 0, 0])
    metrics, gradients = step(flat, config_of(preset=name))
    assert metrics["zero_variance_share"] == 1 and metrics["computed_tokens"] > 0
    assert norm(gradients) > 0
    masked, _ = step(flat, config_of(preset=name, advantage={"zero_variance_mask": True}))
    assert masked["computed_tokens"] == masked["grad_norm"] == 0


def test_a_kl_term_has_a_gradient_in_groups_without_variance_unless_they_are_masked(experience):
    flat = with_stored(experience)
    flat = Experience(
        flat.rollouts[8:12],
        flat.scores[8:12],
        {name: rows[8:12] for name, rows in flat.stored.items()},
    )
    kl = {"name": "kl", "coefficient": 0.5}
    masked, _ = step(flat, config_of(reference=kl))
    assert masked["grad_norm"] == masked["kl_reference"] == masked["computed_tokens"] == 0
    metrics, _ = step(flat, config_of(reference=kl, advantage={"zero_variance_mask": False}))
    assert metrics["grad_norm"] > 0 and metrics["kl_reference"] > 0


@pytest.mark.parametrize("rewards", [[1.0, 0.5, 0.0, 0.5], [1.0, None, 0.0, 0.0]])
def test_a_kl_term_has_a_gradient_at_advantage_0_in_a_varied_group(experience, rewards):
    every = with_stored(experience)
    case = replace(
        part(every, [0, 1, 2, 3], rewards),
        stored={name: rows[:4] for name, rows in every.stored.items()},
    )
    kl = {"name": "kl", "coefficient": 0.5}
    metrics, _ = step(case, config_of(reference=kl, optimizer=ALONE))
    assert metrics["zero_variance_share"] == 0
    sizes = [len(r.prompt_ids) + len(r.response_ids) for r in case.rollouts]
    assert metrics["computed_tokens"] == sum(sizes)


def test_the_ess_step_multiplies_the_learning_rate_by_the_root_of_the_share(experience):
    experience = stale(experience)
    metrics, gradients = step(experience, config_of(step={"name": "ess"}))
    plain, same = step(experience, config_of())
    share = metrics["effective_sample_share"]
    assert 0 < share < 0.9 and plain["effective_sample_share"] == share
    assert metrics["lr"] == pytest.approx(plain["lr"] * math.sqrt(share), rel=1e-12)
    assert_same_gradients(gradients, same, rtol=1e-6)


def test_a_batch_without_reward_variance_has_no_gradient(experience):
    policy = load_policy(ModelOptions())
    before = [p.detach().clone() for p in policy.model.parameters()]
    rewards: list[float | None] = [0, 0, 0, 0, 1, 1, 1, 1]
    metrics, gradients = step(part(experience, list(range(8)), rewards), config_of(), policy)
    assert metrics["loss"] == metrics["grad_norm"] == norm(gradients) == 0
    assert metrics["zero_variance_share"] == 1 and metrics["skipped"] == 0
    assert metrics["computed_tokens"] == 0 and metrics["batch_reward"] == 0.5
    after = policy.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# --- Scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_failed_score_leaves_the_statistics_but_not_the_denominator(experience, reduction):
    with_it = part(experience, [0, 1, 2, 3], [1, 0, None, 0])
    without = part(experience, [0, 1, 3], [1, 0, 0])
    config = config_of(reduction=reduction)
    metrics, gradients = step(with_it, config)
    _, expected = step(without, config)
    lengths = [len(r.response_ids) for r in with_it.rollouts]
    # The rest is divided by a denominator that counts the failed one too.
    factor = {
        "token_mean": (sum(lengths) - lengths[2]) / sum(lengths),
        "sequence_mean": 3 / 4,
        "constant": 3 / 4,
    }[reduction]
    assert_same_gradients(gradients, {n: g * factor for n, g in expected.items()})
    assert metrics["failed_share"] == 1 / 4
    assert metrics["batch_reward"] == pytest.approx(1 / 3)


def truncated_case(experience: Experience, status: Status) -> Experience:
    one = part(experience, [0, 1, 2, 3], [1, 0, 0, 0])
    third = Score(status, 0.0 if status.rewarded else None)
    return replace(one, scores=[*one.scores[:2], third, one.scores[3]])


@pytest.mark.parametrize(("option", "same_as"), [("zero", Status.WRONG), ("masked", Status.ERROR)])
def test_a_truncated_response_counts_as_wrong_or_as_failed(experience, option, same_as):
    config = config_of(rewards={"truncated": option})
    metrics, gradients = step(truncated_case(experience, Status.TRUNCATED), config)
    _, expected = step(truncated_case(experience, same_as), config)
    assert_same_gradients(gradients, expected, rtol=1e-6)
    assert metrics["truncated_share"] == 1 / 4 and metrics["failed_share"] == 0


def test_truncated_as_zero_and_as_masked_are_different_gradients(experience):
    case = truncated_case(experience, Status.TRUNCATED)
    zero = step(case, config_of(rewards={"truncated": "zero"}))[0]
    masked = step(case, config_of(rewards={"truncated": "masked"}))[0]
    assert zero["grad_norm"] != pytest.approx(masked["grad_norm"], rel=1e-2)
