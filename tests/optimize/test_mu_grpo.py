"""The negative-advantage veto: which tokens it removes, and that it removes nothing else."""

from __future__ import annotations

import pytest
import torch

from mugrpo.optimize.objectives import grpo, mu_grpo
from mugrpo.optimize.reduction import reduced_loss

SCOPES = ("suffix", "trigger", "post_trigger", "from_trigger", "response")
KAPPA = 0.1

# Ratios of one response, and for each scope the tokens removed (x) where A < 0.
ROWS = {
    "several triggers": (
        [0.5, 0.05, 0.9, 0.01, 2.0],  # T = {1, 3}, tau = 1
        {
            "suffix": "..x.x",
            "trigger": ".x.x.",
            "post_trigger": "..xxx",
            "from_trigger": ".xxxx",
            "response": "xxxxx",
        },
    ),
    "trigger at the first token": (
        [0.05, 0.5, 0.9],
        {
            "suffix": ".xx",
            "trigger": "x..",
            "post_trigger": ".xx",
            "from_trigger": "xxx",
            "response": "xxx",
        },
    ),
    "trigger at the last token": (
        [0.5, 0.9, 0.05],
        {
            "suffix": "...",
            "trigger": "..x",
            "post_trigger": "...",
            "from_trigger": "..x",
            "response": "xxx",
        },
    ),
    "no trigger": ([0.5, 0.9, 9.0], dict.fromkeys(SCOPES, "...")),
    "ratio exactly kappa": ([KAPPA, 0.9, 2.0], dict.fromkeys(SCOPES, "...")),
}


def removed(
    ratios: list[float],
    advantage: float,
    scope: str,
    *,
    kappa: float = KAPPA,
    mask: list[bool] | None = None,
) -> str:
    """The tokens of one response that the veto removes, as in ROWS."""
    vetoed = mu_grpo.veto(
        torch.tensor([ratios], dtype=torch.float64),
        torch.tensor([advantage]),
        torch.tensor([mask or [True] * len(ratios)]),
        kappa=kappa,
        scope=scope,
    )
    return "".join("x" if token else "." for token in vetoed[0].tolist())


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("row", ROWS)
def test_tokens_that_each_scope_removes(row, scope):
    ratios, expected = ROWS[row]
    assert removed(ratios, -1.0, scope) == expected[scope]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("advantage", [1.0, 0.0])
def test_responses_without_negative_advantage_are_never_touched(scope, advantage):
    assert removed([0.05, 0.9, 0.01, 2.0], advantage, scope) == "...."


@pytest.mark.parametrize("scope", SCOPES)
def test_a_trigger_reaches_its_own_response_only(scope):
    ratios = torch.tensor([[0.9, 0.9], [0.05, 0.9], [0.9, 0.9]])
    vetoed = mu_grpo.veto(
        ratios,
        torch.tensor([-1.0, -1.0, -1.0]),
        torch.ones(3, 2, dtype=torch.bool),
        kappa=KAPPA,
        scope=scope,
    )
    assert vetoed.any(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("scope", SCOPES)
def test_padding_never_triggers(scope):
    assert removed([0.5, 0.9, 0.0, 0.0], -1.0, scope, mask=[True, True, False, False]) == "...."


@pytest.mark.parametrize("scope", SCOPES)
def test_padding_is_never_removed(scope):
    padded = removed([0.5, 0.05, 0.9, 0.9], -1.0, scope, mask=[True, True, True, False])
    assert padded == removed([0.5, 0.05, 0.9], -1.0, scope) + "."


def test_a_ratio_of_exactly_kappa_is_no_trigger_in_the_loss():
    # Equal logprobs: every ratio is exactly exp(0) = 1 = kappa.
    logprobs = torch.full((1, 3), -0.7)
    arguments = (logprobs, logprobs, torch.tensor([-1.0]), torch.ones(1, 3, dtype=torch.bool))
    _, at = mu_grpo.loss(
        *arguments, ratio_clip=(0.0, 5.0), veto_kappa=1.0, veto_scope="from_trigger"
    )
    _, above = mu_grpo.loss(
        *arguments, ratio_clip=(0.0, 5.0), veto_kappa=1.001, veto_scope="from_trigger"
    )
    assert at["vetoed_fraction"].tolist() == [[False, False, False]]
    assert above["vetoed_fraction"].tolist() == [[True, True, True]]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_equals_grpo_with_the_same_interval_when_kappa_is_0(scope, dual_clip):
    generator = torch.Generator().manual_seed(0)
    behavior = -3 * torch.rand(6, 8, generator=generator)
    start = behavior + 3 * torch.randn(6, 8, generator=generator)
    advantages = torch.randn(6, generator=generator)
    mask = torch.arange(8) < torch.tensor([8, 3, 1, 5, 8, 2])[:, None]
    knobs = {"ratio_clip": (0.0, 5.0), "dual_clip": dual_clip}
    results = []
    for loss, veto in (
        (grpo.loss, {}),
        (mu_grpo.loss, {"veto_kappa": 0.0, "veto_scope": scope}),
    ):
        logprobs = start.clone().requires_grad_()
        loss_BT, metrics = loss(logprobs, behavior, advantages, mask, **knobs, **veto)
        (gradient,) = torch.autograd.grad((loss_BT * mask).sum(), logprobs)
        results.append((loss_BT, gradient, metrics["clipped_fraction"]))
    for ours, reference in zip(*results, strict=True):
        assert torch.equal(ours, reference)


def reduced(
    *, kappa: float, reduction: str, divisor: int
) -> tuple[float, list[list[float]], dict[str, torch.Tensor]]:
    """Loss, gradient by the logprobs and metrics of two fixed responses.

    A = -1 with ratios .5 .05 .9 2, and A = +1 with ratios 1 2 and two places of padding.
    """
    ratios = torch.tensor([[0.5, 0.05, 0.9, 2.0], [1.0, 2.0, 1.0, 1.0]], dtype=torch.float64)
    behavior = torch.full((2, 4), -2.0, dtype=torch.float64)
    logprobs = (behavior + ratios.log()).requires_grad_()
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    loss_BT, metrics = mu_grpo.loss(
        logprobs,
        behavior,
        torch.tensor([-1.0, 1.0], dtype=torch.float64),
        mask,
        ratio_clip=(0.0, 5.0),
        veto_kappa=kappa,
        veto_scope="suffix",
    )
    loss = reduced_loss(loss_BT, mask, reduction, divisor)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.item(), gradient.tolist(), metrics


@pytest.mark.parametrize(
    ("reduction", "divisor", "without", "with_veto"),
    [
        # token losses: .5 .05 .9 2 | -1 -2; the veto leaves .5 .05 0 0
        ("token_mean", 6, (3.45 - 3) / 6, (0.55 - 3) / 6),
        ("sequence_mean", 2, (3.45 / 4 - 1.5) / 2, (0.55 / 4 - 1.5) / 2),
    ],
)
def test_denominator_keeps_counting_vetoed_tokens(reduction, divisor, without, with_veto):
    loss, full, _ = reduced(kappa=0.0, reduction=reduction, divisor=divisor)
    loss_veto, rest, _ = reduced(kappa=KAPPA, reduction=reduction, divisor=divisor)
    assert loss == pytest.approx(without, abs=1e-12)
    assert loss_veto == pytest.approx(with_veto, abs=1e-12)
    assert full[0][2] > 0 and full[0][3] > 0
    assert rest[0] == [full[0][0], full[0][1], 0.0, 0.0]  # the prefix is not up-weighted
    assert rest[1] == full[1]


def test_gradient_by_hand_under_the_veto():
    # d loss / d logprob = -r A / 6 tokens, 0 on vetoed tokens and padding
    _, gradient, metrics = reduced(kappa=KAPPA, reduction="token_mean", divisor=6)
    assert gradient[0] == pytest.approx([0.5 / 6, 0.05 / 6, 0, 0], abs=1e-12)
    assert gradient[1] == pytest.approx([-1 / 6, -2 / 6, 0, 0], abs=1e-12)
    assert metrics["vetoed_fraction"].tolist() == [[False, False, True, True], [False] * 4]


def test_a_vetoed_token_does_not_count_as_clipped():
    # Interval [.8, 1.2], A = -1: .05 and .5 are clipped; after the trigger .5 is vetoed instead.
    ratios = torch.tensor([[0.5, 0.05, 0.5]])
    _, metrics = mu_grpo.loss(
        ratios.log(),
        torch.zeros(1, 3),
        torch.tensor([-1.0]),
        torch.ones(1, 3, dtype=torch.bool),
        ratio_clip=(0.8, 1.2),
        veto_kappa=KAPPA,
        veto_scope="suffix",
    )
    assert metrics["clipped_fraction"].tolist() == [[True, True, False]]
    assert metrics["vetoed_fraction"].tolist() == [[False, False, True]]


@pytest.mark.parametrize("scope", ["suffix", "post_trigger", "from_trigger", "response"])
@pytest.mark.parametrize("exponent", [50.0, 200.0])
def test_extreme_ratios_under_the_veto_give_zeros_and_no_nan(scope, exponent):
    """Ratios e^-8, then e^50 or e^200: the latter is inf in fp32, and 0 x inf would be NaN."""
    behavior = torch.tensor([[-1.0, -1.0 - exponent, -1.0 - exponent]])
    logprobs = torch.tensor([[-9.0, -1.0, -1.0]], requires_grad=True)
    loss, _ = mu_grpo.loss(
        logprobs,
        behavior,
        torch.tensor([-1.0]),
        torch.ones(1, 3, dtype=torch.bool),
        ratio_clip=(0.0, 5.0),
        veto_kappa=1e-2,
        veto_scope=scope,
    )
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    assert loss[0, 1:].tolist() == [0.0, 0.0]
    assert gradient[0, 1:].tolist() == [0.0, 0.0]
    assert torch.isfinite(loss).all() and torch.isfinite(gradient).all()
