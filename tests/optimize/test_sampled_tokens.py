"""Updates on responses with turns: the loss sees what was sampled, the model all that was said."""

import copy
import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mugrpo.model.policy import Policy
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.forward import rollout_logprobs
from tests.builders import plain_logprobs, sampled_experience, stale, tiny_policy, with_turns
from tests.cases import table
from tests.updates import assert_same_gradients, config_of, step

THRESHOLD = 0.7
OBJECTIVES: dict[str, dict[str, Any]] = {
    "grpo": {"name": "grpo", "ratio_clip": (0.8, 1.2)},
    "relaxed": {"name": "grpo", "ratio_clip": (0.0, 5.0)},
    "minpro": {"name": "minpro", "ratio_clip": (0.8, 1.2)},
    "gspo": {"name": "grpo", "ratio_clip": (0.8, 1.2), "level": "sequence"},
    "m2po": {"name": "m2po"},  # with a limit of 0.04
}
MAX_NEW_TOKENS = 48


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy("llama")


@pytest.fixture(scope="module")
def turns(policy: Policy) -> Experience:
    return with_turns(stale(sampled_experience(policy)))


def sampled_logprobs(model: Any, rollout: Any) -> list[torch.Tensor]:
    """Return the logprob of each sampled token, each from a forward pass over what precedes it."""
    ids = [*rollout.prompt_ids.tolist(), *rollout.response_ids.tolist()]
    logprobs = []
    for place, sampled in enumerate(rollout.loss_mask.tolist(), len(rollout.prompt_ids)):
        if sampled:
            logits = model(input_ids=torch.tensor([ids[:place]]), use_cache=False).logits
            logprobs.append(torch.log_softmax(logits[0, -1], -1)[ids[place]])
    return logprobs


def weights(name: str, logprobs: list[torch.Tensor], behavior: list[float]) -> list[torch.Tensor]:
    """Return the ratio that each objective clips, of each sampled token of a response."""
    ratios = [(p - b).exp() for p, b in zip(logprobs, behavior, strict=True)]
    if name == "minpro":
        least = [min([r.item() for r in ratios[:t]], default=1.0) for t in range(len(ratios))]
        return [r * m for r, m in zip(ratios, least, strict=True)]
    if name == "gspo":
        mean = statistics.mean(r.log().item() for r in ratios)
        return [torch.tensor(mean).exp() * r / r.detach() for r in ratios]
    return ratios


def masked(responses: list[Any]) -> set[tuple[int, int]]:
    """Return the tokens that M2PO drops, one by one, the largest (log r)^2 first."""
    away = {
        (i, t): (logprob.item() - before) ** 2
        for i, (advantage, *both) in enumerate(responses)
        for t, (logprob, before) in enumerate(zip(*both, strict=True))
        if advantage * (logprob.item() - before) > 0
    }
    removed = set()
    while away and statistics.mean(away.values()) > 0.04:
        removed.add(largest := max(away, key=lambda place: away[place]))
        del away[largest]
    return removed


def expected_loss(
    model: Any, experience: Experience, name: str, reduction: str, veto: bool
) -> tuple[torch.Tensor, float]:
    """Return the update's loss token by token, without padding, batches or environment's tokens,
    and the share of tokens that a veto or a mask removes."""
    total, rewards = torch.zeros(()), [score.reward for score in experience.scores]
    tokens = sum(int(r.loss_mask.sum()) for r in experience.rollouts)
    responses = []
    for i, rollout in enumerate(experience.rollouts):
        group = rewards[i // 4 * 4 : i // 4 * 4 + 4]
        if spread := statistics.stdev(group):
            advantage = (rewards[i] - statistics.mean(group)) / (spread + 1e-4)
            behavior = rollout.behavior_logprobs[rollout.loss_mask].astype(float).tolist()
            responses.append((advantage, sampled_logprobs(model, rollout), behavior))
    removed = masked(responses) if name == "m2po" else set()
    low, high = {"relaxed": (0.0, 5.0), "m2po": (0.0, math.inf)}.get(name, (0.8, 1.2))
    for i, (advantage, logprobs, behavior) in enumerate(responses):
        triggered, losses = False, [torch.zeros(())]
        for t, weight in enumerate(weights(name, logprobs, behavior)):
            below = (logprobs[t] - behavior[t]).exp().item() < THRESHOLD
            if veto and advantage < 0 and triggered and not below:
                removed.add((i, t))
            triggered = triggered or below
            if (i, t) not in removed:
                losses.append(-min(weight * advantage, weight.clamp(low, high) * advantage))
        shares = {"sequence_mean": len(rewards) * len(logprobs), "token_mean": tokens}
        total = total + sum(losses) / shares.get(reduction, len(rewards) * MAX_NEW_TOKENS)
    return total, len(removed) / tokens


CASES = [
    ("grpo", "sequence_mean", True),
    ("relaxed", "token_mean", True),
    ("m2po", "constant", False),
    ("minpro", "token_mean", False),
    ("grpo", "token_mean", False),
    ("gspo", "sequence_mean", False),
]


@table(
    ("name", "reduction", "veto", "share"),
    [(*case, share) for share in (True, False) for case in CASES],
    first=4,
)
def test_gradients_are_those_of_single_tokens(policy, turns, name, reduction, veto, share):
    """Each sampled token by a forward pass of its own, in fp64; the trainer's is in fp32."""
    config = config_of(
        OBJECTIVES[name],
        reduction=reduction,
        veto={"name": "negative_advantage", "threshold": THRESHOLD} if veto else {"name": "off"},
        optimizer={"micro_batch_tokens": 150},
    )
    exact = copy.deepcopy(policy.model).double().eval()
    expected, removed = expected_loss(exact, turns, name, reduction, veto)
    expected.backward()
    metrics, gradients = step(turns, config, copy.deepcopy(policy), share)
    assert metrics["loss"] == pytest.approx(expected.item(), abs=1e-6)
    assert (metrics["shared_prompt_share"] > 0) == share
    wanted = {n: p.grad.float() for n, p in exact.named_parameters() if n in gradients}
    assert_same_gradients(gradients, wanted, rtol=1e-5)
    if veto or name == "m2po":
        share = metrics["vetoed_fraction" if veto else "masked_fraction"]
        assert share == pytest.approx(removed) and removed > 0


@table("share", [True, False])
def test_logprobs_are_the_plain_models_and_0_where_nothing_was_sampled(policy, turns, share):
    policy, config = copy.deepcopy(policy), config_of(optimizer={"micro_batch_tokens": 150})
    policy.can_share_prompts = policy.can_share_prompts if share else False
    for rollout, logprobs in zip(
        turns.rollouts, rollout_logprobs(policy, turns.rollouts, config), strict=True
    ):
        plain = plain_logprobs(policy, rollout.prompt_ids, rollout.response_ids).detach().numpy()
        np.testing.assert_allclose(logprobs, plain * rollout.loss_mask, atol=2e-5)


def test_a_response_whose_tokens_were_all_sampled_has_the_same_bits_with_a_mask(policy):
    """The mask is also allowed to be all true. The numbers are those of no mask."""
    plain = stale(sampled_experience(policy))
    masked = [
        replace(r, loss_mask=np.ones(len(r.response_ids), bool), turns=np.array([0], np.int32))
        for r in plain.rollouts
    ]
    config = config_of(OBJECTIVES["grpo"])
    _, expected = step(plain, config, copy.deepcopy(policy))
    _, gradients = step(replace(plain, rollouts=masked), config, copy.deepcopy(policy))
    for name, gradient in gradients.items():
        assert torch.equal(gradient, expected[name])
