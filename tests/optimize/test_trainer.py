"""Updates do not depend on their cut nor on what they leave uncomputed; what scores count.

test_sampled_tokens compares their gradients with a computation token by token.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from mugrpo.config.run import PRESETS, ModelOptions
from mugrpo.disk.records import FinishReason, Score, Status
from mugrpo.engines.base import Request
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.loss import UpdateLoss
from tests.builders import PROMPTS, encoded, generated, rollout, stale, tiny_policy, verdict
from tests.cases import table
from tests.updates import assert_same_gradients, config_of, part, step, with_stored

# Configs of methods, without the reduction.
METHODS: dict[str, dict[str, Any]] = {
    "grpo": {"preset": "grpo"},
    "mu-grpo": {"preset": "mu-grpo", "veto": {"threshold": 0.5}},
    "m2po": {"preset": "m2po"},
}
OTHERS: dict[str, dict[str, Any]] = {
    **{name: {"preset": name} for name in PRESETS if name not in METHODS},
    "masked correction": {"correction": {"name": "masked", "level": "sequence"}},
    "truncated correction, m2po": {"preset": "m2po", "correction": {"name": "truncated"}},
    "off-policy sequence mask": {"sequence_mask": {"name": "off_policy", "delta": 0.05}},
}
COST = ("time/", "padding_share", "computed_tokens", "shared_prompt_share")
STORED = ("trainer_behavior_logprobs", "proximal_logprobs", "reference_logprobs")


def assert_alike(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Check that the metrics of two updates are equal up to rounding, but for what they cost."""
    ours, theirs = ({k: v for k, v in m.items() if not k.startswith(COST)} for m in (ours, theirs))
    assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-6)


@table("name", OTHERS, first=3)
def test_the_cut_into_micro_batches_changes_no_gradient_of_any_method(experience, name):
    experience = with_stored(experience, *STORED)
    (whole, together), (cut, apart) = (
        step(experience, config_of(**OTHERS[name], optimizer={"micro_batch_tokens": budget}))
        for budget in (4096, 1)
    )
    assert cut["computed_tokens"] > whole["computed_tokens"]
    assert_same_gradients(apart, together, rtol=1e-3)
    assert_alike(cut, whole)


@table("name", ["kl", *METHODS, *OTHERS], first=4)
def test_sharing_prompts_changes_no_gradient_of_any_method(experience, name):
    kl = {"reference": {"name": "kl", "coefficient": 0.5}}
    groups = {**METHODS, **OTHERS, "kl": kl}[name]
    (shared, together), (alone, apart) = (
        step(with_stored(experience, *STORED), config_of(**groups), share=share)
        for share in (True, False)
    )
    assert shared["shared_prompt_share"] > 0.1 and alone["shared_prompt_share"] == 0
    assert_same_gradients(together, apart, rtol=1e-5)
    assert_alike(shared, alone)


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
    metrics, _ = step(one, config_of(), share=False)
    assert metrics["computed_tokens"] == alone and metrics["shared_prompt_share"] == 0
    assert metrics["padding_share"] == pytest.approx(1 - alone / (4 * (prompt + max(lengths))))


# Not kl-surrogate: its penalty in groups without variance is masked by not computing them.
GROUP_ADVANTAGES = [
    name
    for name, groups in OTHERS.items()
    if config_of(**groups).advantage.zero_variance_mask and name != "kl-surrogate"
]


@table("name", [*METHODS, *GROUP_ADVANTAGES], first=4)
def test_not_computing_responses_of_advantage_zero_changes_no_gradient(experience, name):
    experience, groups = with_stored(experience, *STORED), {**METHODS, **OTHERS}[name]
    few, skipped = step(experience, config_of(**groups), share=False)
    everything = mock.patch.object(
        UpdateLoss, "has_gradient", lambda _, responses: torch.ones_like(responses.varied)
    )
    with everything:
        every, computed = step(experience, config_of(**groups), share=False)
    size = [len(r.prompt_ids) + len(r.response_ids) for r in experience.rollouts]
    assert every["computed_tokens"] == sum(size)
    assert few["computed_tokens"] == sum(size) - sum(size[8:12])  # group 2 has no variance
    assert few["tokens"] == every["tokens"]
    assert few["loss"] == pytest.approx(every["loss"], rel=1e-5)
    assert_same_gradients(skipped, computed)


@table("rewards", [[1.0, 0.5, 0.0, 0.5], [1.0, None, 0.0, 0.0]])
def test_a_kl_term_has_a_gradient_at_advantage_0_in_a_varied_group(experience, rewards):
    every = with_stored(experience, *STORED)
    case = replace(
        part(every, [0, 1, 2, 3], rewards),
        stored={name: rows[:4] for name, rows in every.stored.items()},
    )
    kl = {"name": "kl", "coefficient": 0.5}
    metrics, _ = step(case, config_of(reference=kl), share=False)
    assert metrics["zero_variance_share"] == 0
    sizes = [
        len(rollout.prompt_ids) + len(rollout.response_ids)
        for rollout, reward in zip(case.rollouts, rewards, strict=True)
        if reward is not None  # without a reward a response has no gradient at all
    ]
    assert metrics["computed_tokens"] == sum(sizes)


def test_on_the_policys_own_samples_every_ratio_is_one(experience):
    metrics, _ = step(experience, config_of())
    for key in ("ratio/positive/mean", "ratio/negative/mean", "ratio/positive/max"):
        assert metrics[key] == pytest.approx(1, abs=1e-3)
    assert abs(metrics["kl_behavior"]) < 1e-6 and abs(metrics["tv_token"]) < 1e-4
    assert metrics["vetoed_fraction"] == metrics["clipped_fraction"] == 0


def sampled(policy: Policy, prompts: Sequence[str], **sampling: Any) -> Experience:
    """Return four responses to the prompts, in groups by prompt, rewarded 1, 0, 0 and 1."""
    requests = [Request(encoded(policy, prompt), seed) for seed, prompt in enumerate(prompts)]
    completions = generated(policy, requests, **sampling)
    rollouts = [
        rollout(prompt, i, request.prompt_ids, completion)
        for i, (prompt, request, completion) in enumerate(
            zip(prompts, requests, completions, strict=True)
        )
    ]
    return Experience(rollouts, [verdict(reward) for reward in (1, 0, 0, 1)])


def test_logprobs_are_taken_at_the_temperature_that_was_sampled_at(embedded_policy):
    experience = sampled(embedded_policy, [PROMPTS[0]] * 4, temperature=0.5)
    metrics, _ = step(experience, config_of(rollouts={"temperature": 0.5}))
    assert metrics["kl_behavior"] < 1e-6
    metrics, _ = step(experience, config_of(rollouts={"temperature": 1.0}))
    assert metrics["kl_behavior"] > 1e-3


REDUCTIONS = ("token_mean", "sequence_mean", "constant")


@table("reduction", REDUCTIONS)
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


@table(("option", "same_as"), [("zero", Status.WRONG), ("masked", Status.ERROR)])
def test_a_truncated_response_counts_as_wrong_or_as_failed(experience, option, same_as):
    config = config_of(rewards={"truncated": option})
    metrics, gradients = step(truncated_case(experience, Status.TRUNCATED), config)
    _, expected = step(truncated_case(experience, same_as), config)
    assert_same_gradients(gradients, expected, rtol=1e-6)
    rollouts = truncated_case(experience, Status.TRUNCATED).rollouts
    cut = [one.finish_reason is FinishReason.LENGTH for one in rollouts]
    assert metrics["truncated_share"] == sum(cut) / 4 and metrics["failed_share"] == 0


@table("form", ["llama", "qwen2", "gpt2"])
def test_gradient_checkpointing_changes_no_gradient(form):
    # The configs ask for dropout of 0.5, and checkpointing keeps the model in training mode.
    prompts = [prompt for prompt in PROMPTS[:2] for _ in range(2)]
    case = stale(sampled(tiny_policy(form), prompts, max_new_tokens=20))
    _, plain = step(case, config_of(), tiny_policy(form))
    checkpointed = tiny_policy(form, gradient_checkpointing=True)
    assert checkpointed.model.training
    _, again = step(case, config_of(), checkpointed)
    assert_same_gradients(again, plain, rtol=1e-6)


def test_a_tokenizer_without_a_padding_token_changes_nothing(experience):
    experience = stale(experience)
    with_pad, without = load_policy(ModelOptions()), load_policy(ModelOptions())
    without.tokenizer.pad_token = None
    without = Policy(without.model, without.tokenizer, ModelOptions())
    assert (with_pad.pad_id, without.pad_id) == (0, 1)  # <pad>, <eos>
    # rows that share prompts are not padded
    expected, gradients = step(experience, config_of(), with_pad, share=False)
    metrics, others = step(experience, config_of(), without, share=False)
    assert expected["padding_share"] > 0.2  # there is padding that could matter
    assert metrics["loss"] == expected["loss"]
    assert all(torch.equal(others[name], gradients[name]) for name in gradients)
