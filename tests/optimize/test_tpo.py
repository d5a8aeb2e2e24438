"""TPO: its gradient is that of the group's cross-entropy, computed in another way."""

from __future__ import annotations

import math

import torch

from mugrpo.optimize.objectives import tpo
from tests.cases import table


def test_the_gap_by_hand():
    """Two groups. Behavior 1/2 and 1/4, A = log 3 and log 2: q = 3/4, 1/4. pi equal: p = 1/2."""
    behavior = torch.tensor([[0.5, 1.0], [0.5, 0.5], [0.3, 0.3]], dtype=torch.float64).log()
    logprobs = torch.tensor([[0.6, 0.5], [0.3, 1.0], [0.9, 0.9]], dtype=torch.float64).log()
    advantages = torch.tensor([math.log(3), math.log(2), 5.0], dtype=torch.float64)
    mask = torch.ones(3, 2, dtype=torch.bool)
    groups = torch.tensor([4, 4, 7])
    found = tpo.prepass(logprobs, behavior, advantages, mask, groups=groups)["gap"]
    expected = torch.tensor([[-0.25] * 2, [0.25] * 2, [0.0] * 2], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    loss, metrics = tpo.loss(logprobs, behavior, advantages, mask, gap=found)
    torch.testing.assert_close(loss, expected * logprobs)
    torch.testing.assert_close(metrics["target_gap"], expected.abs())


@table("seed", range(3))
def test_the_gradient_is_that_of_the_cross_entropy_to_the_target(seed):
    """-sum_i q_i log p_i by autograd, in each group; responses of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    behavior = -torch.rand(6, 4, generator=generator, dtype=torch.float64)
    logprobs = (behavior - torch.rand(6, 4, generator=generator).double()).requires_grad_()
    advantages = torch.randn(6, generator=generator, dtype=torch.float64)
    mask = torch.arange(4) < torch.tensor([4, 1, 3, 2, 4, 2])[:, None]
    groups = torch.tensor([0, 1, 0, 1, 0, 1])
    with torch.no_grad():
        extra = tpo.prepass(logprobs, behavior, advantages, mask, groups=groups)
    loss, _ = tpo.loss(logprobs, behavior, advantages, mask, **extra)
    (gradient,) = torch.autograd.grad((loss * mask).sum(), logprobs)
    entropy = torch.zeros((), dtype=torch.float64)
    for group in (0, 1):
        of = groups == group
        target = (behavior[of] * mask[of]).sum(-1).exp() * advantages[of].exp()
        likelihoods = (logprobs[of] * mask[of]).sum(-1).exp()
        shares = likelihoods / likelihoods.sum()
        entropy = entropy - (target / target.sum() * shares.log()).sum()
    (exact,) = torch.autograd.grad(entropy, logprobs)
    torch.testing.assert_close(gradient, exact, rtol=1e-12, atol=1e-12)
