"""Importance ratios: bounds, sequence ratios, and the PPO min form compared with torch's min."""

import math

import torch

from mugrpo.optimize.ratios import finite, log_ratios, ppo_min, sequence_log_ratios
from tests.cases import table

INF = math.inf


@table("dtype", [torch.float32, torch.float64])
@table(
    ("logprob", "behavior", "value", "slope"),
    [
        (-1.0, -1.5, 0.5, 1.0),
        (-1.5, -1.0, -0.5, 1.0),
        (0.0, -79.0, 79.0, 1.0),  # at 80 itself, the gradient depends on the version of torch
        (-79.0, 0.0, -79.0, 1.0),
        (0.0, -100.0, 80.0, 0.0),
        (-100.0, 0.0, -80.0, 0.0),
        (-INF, -1.0, -80.0, 0.0),
        (-1.0, -INF, 80.0, 0.0),
        (-INF, -INF, 0.0, 0.0),
    ],
)
def test_log_ratio_and_its_gradient(logprob, behavior, value, slope, dtype):
    logprobs = torch.tensor([[logprob]], dtype=dtype, requires_grad=True)
    actual = log_ratios(logprobs, torch.tensor([[behavior]], dtype=dtype))
    actual.sum().backward()
    assert actual.item() == value
    assert logprobs.grad.item() == slope


def test_finite_logprobs_are_a_constant_below_minus_10000():
    logprobs = torch.tensor([-INF, -2e4, -80.0, -3.0, 0.0], requires_grad=True)
    held_logprobs = finite(logprobs)
    held_logprobs.sum().backward()
    assert held_logprobs.tolist() == [-1e4, -1e4, -80.0, -3.0, 0.0]
    assert logprobs.grad.tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]


def test_a_sequence_log_ratio_is_the_mean_with_each_tokens_own_gradient():
    """log r = (.6, -.2, .2): mean .2 at every token; the second response has a single token, .7."""
    log_ratio = torch.tensor([[0.6, -0.2, 0.2], [0.7, 9.0, 9.0]], requires_grad=True)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]], dtype=torch.bool)
    actual = sequence_log_ratios(log_ratio, mask)
    torch.testing.assert_close(actual, torch.tensor([[0.2, 0.2, 0.2], [0.7, 0.7, 0.7]]))
    weights = torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]])
    (actual * weights).sum().backward()
    torch.testing.assert_close(log_ratio.grad, weights)


def test_ppo_min_equals_torchs_min_and_clamp_in_value_and_gradient():
    """min(r A, clamp(r) A) as it is usually written, on random numbers away from the bounds."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        ratio = torch.randn(6, 7, generator=generator, dtype=torch.float64).exp()
        advantages = torch.randn(6, 1, generator=generator, dtype=torch.float64)
        low, high = sorted(torch.rand(2, generator=generator, dtype=torch.float64).tolist())
        ours, plain = ratio.clone().requires_grad_(), ratio.clone().requires_grad_()
        surrogate, clipped = ppo_min(ours, advantages, low, 1 + high)
        expected = torch.min(plain * advantages, plain.clamp(low, 1 + high) * advantages)
        torch.testing.assert_close(surrogate, expected, rtol=1e-14, atol=0)
        surrogate.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-14, atol=0)
        assert torch.equal(clipped, plain.grad == 0)
