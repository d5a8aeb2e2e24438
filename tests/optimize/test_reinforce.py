"""REINFORCE without a ratio, under AsymRE's, shifted and group advantages, by hand."""

import torch

from mugrpo.optimize.advantages import asymre, group, shifted
from mugrpo.optimize.objectives import reinforce
from tests.cases import table

# Three responses of 2, 1 and 3 tokens; rewards 1, 0, 1/2, mean 1/2.
REWARDS = torch.tensor([[1.0, 0.0, 0.5]])
VALID = torch.ones(1, 3, dtype=torch.bool)
LOGPROBS = [[-1.0, -0.5, -7.0], [-2.0, -7.0, -7.0], [-0.25, -4.0, -1.0]]
MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]], dtype=torch.bool)


@table(
    ("advantages", "expected"),
    [
        # R - (mean + delta): 1 - .4, 0 - .4, .5 - .4
        (asymre(REWARDS, VALID, delta=-0.1), [0.6, -0.4, 0.1]),
        (asymre(REWARDS, VALID, delta=0.0), [0.5, -0.5, 0.0]),
        (asymre(REWARDS, VALID, delta=0.25), [0.25, -0.75, -0.25]),
        (shifted(REWARDS, VALID, baseline=0.25), [0.75, -0.25, 0.25]),
        # population variance 1/6; / sqrt(1/6 + 1e-4) = .408371
        (group(REWARDS, VALID, std="population"), [1.224378, -1.224378, 0.0]),
    ],
)
def test_losses_and_weights_by_hand(advantages, expected):
    logprobs = torch.tensor(LOGPROBS, dtype=torch.float64, requires_grad=True)
    behavior = torch.linspace(-9, -0.1, 9, dtype=torch.float64).reshape(3, 3)  # far away
    loss, metrics = reinforce.loss(logprobs, behavior, advantages[0], MASK)
    assert metrics == {}
    losses = loss * MASK
    weights = -torch.autograd.grad(losses.sum(), logprobs)[0]
    a, b, c = expected
    # -A log pi
    values = [[a, 0.5 * a, 0], [2 * b, 0, 0], [0.25 * c, 4 * c, c]]
    torch.testing.assert_close(losses, torch.tensor(values, dtype=torch.float64), rtol=1e-6, atol=0)
    slopes = [[a, a, 0], [b, 0, 0], [c, c, c]]
    torch.testing.assert_close(
        weights, torch.tensor(slopes, dtype=torch.float64), rtol=1e-6, atol=0
    )
