"""An update's loss and gradient: what scores count and what a model's settings change.

test_sampled_tokens compares them with a computation token by token.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mugrpo.config.run import ModelOptions
from mugrpo.disk.records import FinishReason, Score, Status
from mugrpo.engines.base import Request
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.experience import Experience
from tests.builders import PROMPTS, encoded, generated, rollout, stale, tiny_policy, verdict
from tests.cases import table
from tests.updates import assert_same_gradients, config_of, part, step


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
