"""A tabular softmax bandit: each objective's expected gradient, enumerated and in closed form.

There are five arms, and responses have one token. The behavior policy's probabilities are multiples
of 1/20, so twenty responses, with each arm in proportion to its probability, are its exact
distribution. Means over them are expectations, and anything that looks at the whole update (a
group's mean, a pre-pass) sees the population. If c_a are the weights on grad log pi_a, the gradient
of the maximized objective in the softmax's logits is

    sum_a c_a grad log pi_a = c - pi sum_a c_a.

The closed forms below use pi, beta and A alone.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from mugrpo.config.base import members_of
from mugrpo.config.objectives import Advantage, Objective
from mugrpo.optimize import advantages, reference
from mugrpo.optimize.objectives import kl_surrogate, load_objective
from tests.cases import table

COUNTS = torch.tensor([10, 5, 3, 1, 1])
ARMS = torch.repeat_interleave(torch.arange(5), COUNTS)  # the arm of each of the twenty responses
BETA = COUNTS.double() / 20
REWARDS = torch.tensor([0.5, 0.6, 0.3, 0.9, 0.0], dtype=torch.float64)
MASK = torch.ones(20, 1, dtype=torch.bool)
VALID = torch.ones(1, 20, dtype=torch.bool)

Tensor = torch.Tensor


def responses_of(values_of_arms: Tensor) -> Tensor:
    """Return the value of each response's arm, [20, 1]."""
    return values_of_arms[ARMS][:, None]


def random_policy(seed: int, spread: float = 1.0) -> Tensor:
    """Return the logits of a random policy near the behavior policy."""
    generator = torch.Generator().manual_seed(seed)
    noise = spread * torch.randn(5, generator=generator, dtype=torch.float64)
    return (BETA.log() + noise).requires_grad_()


def expected_gradient(
    objective: str, logits: Tensor, of_responses: Tensor, options: dict[str, Any], **stored: Tensor
) -> Tensor:
    """Return the maximized objective's gradient in the logits, under the behavior policy."""
    chosen = members_of(Objective)[objective](**options)
    functions = load_objective(objective, needs=chosen.needs)
    logprobs = responses_of(logits.log_softmax(-1))
    arguments = (logprobs, responses_of(BETA.log()), of_responses, MASK)
    extra = {name: responses_of(stored[name]) for name in chosen.needs}
    if functions.prepass is not None:
        with torch.no_grad():
            extra |= functions.prepass(*arguments, **chosen.knobs)
    loss, _ = functions.loss(*arguments, **chosen.knobs, **extra)
    (gradient,) = torch.autograd.grad(-loss.mean(), logits)
    return gradient


def same(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def unclipped(ratio: Tensor, a: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Return 1 for arms with a gradient under the PPO min form, 0 for the others."""
    return (~(((a > 0) & (ratio > high)) | ((a < 0) & (ratio < low)))).double()


def m2po_kept(pi: Tensor, a: Tensor, limit: float) -> Tensor:
    """Return the share of each arm's responses that M2PO keeps. Responses are masked one by one,
    the largest square first, until the mean over T is within the limit. Responses of one arm have
    equal squares, so an arm may be kept in part."""
    log_ratio = (pi / BETA).log()
    counts, squares = COUNTS * (a * log_ratio > 0), log_ratio**2  # of responses in M2PO's T
    kept = COUNTS.double().clone()
    while counts.sum() > 0 and (counts * squares).sum() / counts.sum() > limit:
        worst = (squares * (counts > 0)).argmax()
        counts[worst] -= 1
        kept[worst] -= 1
    return kept / COUNTS


def _grpo(pi: Tensor, a: Tensor, _: Tensor) -> Tensor:
    return pi * a * unclipped(pi / BETA, a, 0.8, 1.2)


def _ctpo(pi: Tensor, a: Tensor, _: Tensor) -> Tensor:
    low, high, ratio = math.exp(-0.025), math.exp(0.05), pi / BETA
    return pi * a * unclipped(ratio, a, low, high) * ((a > 0) | (ratio <= high))


def _gamma(ratio: Tensor, a: Tensor) -> Tensor:
    """VESPO's weight, (k, lambda) = (2, 3) for A >= 0 and (3, 2) below."""
    above, below = ratio**2 * (3 - 3 * ratio).exp(), ratio**3 * (2 - 2 * ratio).exp()
    return torch.where(a >= 0, above, below)


# The weight c_a of each arm in closed form, of (pi, A, proximal policy); beta r = pi.
Weights = Callable[[Tensor, Tensor, Tensor], Tensor]
CLOSED: dict[str, tuple[str, dict[str, Any], Weights]] = {
    "grpo": ("grpo", {}, _grpo),
    "gspo": ("grpo", {"level": "sequence"}, _grpo),
    "grpo, unclipped": ("grpo", {"ratio_clip": (0.0, 1e9)}, lambda pi, a, _: pi * a),
    "grpo, relaxed": (
        "grpo",
        {"ratio_clip": (0.0, 1.5)},
        lambda pi, a, _: pi * a * unclipped(pi / BETA, a, 0.0, 1.5),
    ),
    "grpo, dual clip": (
        "grpo",
        {"ratio_clip": (0.8, 1.2), "dual_clip": 1.5},
        lambda pi, a, _: _grpo(pi, a, _) * ~((a < 0) & (pi / BETA > 1.5)),
    ),
    "grpo, proximal center": (
        "grpo",
        {"clip_center": "proximal"},
        lambda pi, a, prox: (
            pi * a * unclipped(pi / BETA, a, (prox / BETA - 0.2).clamp(min=0), prox / BETA + 0.2)
        ),
    ),
    "kl_surrogate": (
        "kl_surrogate",
        {"penalty": 0.3},
        lambda pi, a, _: pi * (a - 0.3 * (pi / BETA).log()),
    ),
    "kl_surrogate, no penalty": ("kl_surrogate", {"penalty": 0.0}, lambda pi, a, _: pi * a),
    "cispo": (
        "cispo",
        {"ratio_clip": (0.7, 1.3)},
        lambda pi, a, _: BETA * (pi / BETA).clamp(0.7, 1.3) * a,
    ),
    "m2po": ("m2po", {}, lambda pi, a, _: pi * a * m2po_kept(pi, a, 0.04)),
    "decoupled_ppo": (
        "decoupled_ppo",
        {},
        lambda pi, a, prox: pi * a * unclipped(pi / prox, a, 0.8, 1.2),
    ),
    "topr": ("topr", {}, lambda pi, a, _: torch.where(a > 0, BETA, torch.minimum(pi, BETA)) * a),
    "vespo": ("vespo", {}, lambda pi, a, _: BETA * _gamma(pi / BETA, a) * a),
    "minpro": ("minpro", {}, _grpo),
    "ctpo": ("ctpo", {}, _ctpo),
    "reinforce": ("reinforce", {}, lambda pi, a, _: BETA * a),
}


def test_every_objective_has_a_closed_form_here():
    assert {name for name, _, _ in CLOSED.values()} == members_of(Objective).keys() - {"file"}


@table("case", CLOSED)
@table("advantage", ["group", "shifted", "asymre"])
def test_expected_gradient_is_the_closed_form(case, advantage):
    name, options, weights = CLOSED[case]
    knobs = members_of(Advantage)[advantage]().knobs
    of_responses = getattr(advantages, advantage)(REWARDS[ARMS][None], VALID, **knobs)[0]
    a = torch.stack([of_responses[arm == ARMS][0] for arm in range(5)])
    reached = False
    for seed in range(20):
        logits = random_policy(seed, spread=0.3 + 0.05 * seed)
        proximal = random_policy(seed + 100, spread=0.3).detach().softmax(-1)
        actual = expected_gradient(
            name, logits, of_responses, options, proximal_logprobs=proximal.log()
        )
        pi = logits.detach().softmax(-1)
        c = weights(pi, a, proximal)
        same(actual, c - pi * c.sum())
        reached |= actual.any().item()
    assert reached


def divergence(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum()


def test_the_kl_surrogates_penalty_is_kl_of_policy_and_behavior_with_its_gradient():
    for seed in range(20):
        logits = random_policy(seed)
        policy, behavior = responses_of(logits.log_softmax(-1)), responses_of(BETA.log())
        nothing = torch.zeros(20).double()
        loss, metrics = kl_surrogate.loss(policy, behavior, nothing, MASK, penalty=1.0)
        exact = divergence(logits.softmax(-1), BETA)
        same(metrics["kl_penalty"].mean(), exact.detach())
        (actual,) = torch.autograd.grad(loss.mean(), logits)
        same(actual, torch.autograd.grad(exact, logits)[0])


def test_corrected_k3_is_kl_of_policy_and_reference_with_its_gradient_off_policy():
    for seed in range(20):
        logits, ref = random_policy(seed), random_policy(seed + 50).detach().softmax(-1)
        exact = divergence(logits.softmax(-1), ref)
        policy, behavior, of_ref = logits.log_softmax(-1), BETA.log(), ref.log()
        kl_BT = reference.kl(*map(responses_of, (policy, behavior, of_ref)))
        same(kl_BT.mean().detach(), exact.detach())
        (gradient,) = torch.autograd.grad(kl_BT.mean(), logits)
        same(gradient, torch.autograd.grad(exact, logits)[0])
