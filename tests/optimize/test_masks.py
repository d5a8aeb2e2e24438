"""What masks remove, and that they remove nothing else; Mu-GRPO as composed by UpdateLoss."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mugrpo.optimize.loss import UpdateLoss, reduced_loss
from mugrpo.optimize.objectives import grpo
from mugrpo.optimize.ratios import negative_advantage_veto, off_policy
from tests.cases import table
from tests.updates import config_of, hand_batch

SCOPES = ("suffix", "trigger", "post_trigger", "from_trigger", "response")
KAPPA = torch.tensor(0.1, dtype=torch.float64).log().exp().item()  # rounded as a ratio is

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
    log_ratios = torch.tensor([ratios], dtype=torch.float64).log()
    vetoed = negative_advantage_veto(
        log_ratios,
        torch.zeros_like(log_ratios),
        torch.tensor([advantage]),
        torch.tensor([mask or [True] * len(ratios)]),
        kappa=kappa,
        scope=scope,
    )
    return "".join("x" if token else "." for token in vetoed[0].tolist())


@table("scope", SCOPES)
@table("row", ROWS)
def test_tokens_that_each_scope_removes(row, scope):
    ratios, expected = ROWS[row]
    assert removed(ratios, -1.0, scope) == expected[scope]


@table("scope", SCOPES)
@table("advantage", [1.0, 0.0])
def test_responses_without_negative_advantage_are_never_touched(scope, advantage):
    assert removed([0.05, 0.9, 0.01, 2.0], advantage, scope) == "...."


@table("scope", SCOPES)
def test_padding_never_triggers(scope):
    assert removed([0.5, 0.9, 0.0, 0.0], -1.0, scope, mask=[True, True, False, False]) == "...."


# ---- Mu-GRPO, composed ----

Composed = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]


def composed(
    logprobs: torch.Tensor,
    behavior: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    extra: dict[str, torch.Tensor] | None = None,
    **groups: Any,
) -> Composed:
    """Return token losses, the gradient of their sum w.r.t. the logprobs, and metrics."""
    logprobs = logprobs.detach().clone().requires_grad_()
    loss = UpdateLoss.of(config_of(**groups))
    loss_BT, metrics = loss(hand_batch(behavior, advantages, mask), logprobs, extra or {})
    assert tuple(metrics) == loss.metrics
    (gradient,) = torch.autograd.grad((loss_BT * mask).sum(), logprobs)
    return loss_BT.detach(), gradient, metrics


def veto(kappa: float, scope: str = "suffix") -> dict[str, Any]:
    return {"name": "negative_advantage", "kappa": kappa, "scope": scope}


def test_a_ratio_of_exactly_kappa_is_no_trigger_in_the_loss():
    # Equal logprobs: every ratio is exactly exp(0) = 1 = kappa.
    logprobs = torch.full((1, 3), -0.7)
    arguments = (logprobs, logprobs, torch.tensor([-1.0]), torch.ones(1, 3, dtype=torch.bool))
    _, _, at = composed(*arguments, veto=veto(1.0, "from_trigger"))
    _, _, above = composed(*arguments, veto=veto(1.001, "from_trigger"))
    assert at["vetoed_fraction"].tolist() == [[False, False, False]]
    assert above["vetoed_fraction"].tolist() == [[True, True, True]]


@table("scope", SCOPES)
@table("dual_clip", [None, 3.0])
def test_equals_grpo_with_the_same_interval_when_kappa_is_0(scope, dual_clip):
    generator = torch.Generator().manual_seed(0)
    behavior = -3 * torch.rand(6, 8, generator=generator)
    start = behavior + 3 * torch.randn(6, 8, generator=generator)
    advantages = torch.randn(6, generator=generator)
    mask = torch.arange(8) < torch.tensor([8, 3, 1, 5, 8, 2])[:, None]
    logprobs = start.clone().requires_grad_()
    loss_BT, metrics = grpo.loss(
        logprobs, behavior, advantages, mask, ratio_clip=(0.0, 5.0), dual_clip=dual_clip
    )
    (gradient,) = torch.autograd.grad((loss_BT * mask).sum(), logprobs)
    expected = (loss_BT, gradient, metrics["clipped_fraction"])
    objective = {"name": "grpo", "dual_clip": dual_clip}
    for chosen in (veto(0.0, scope), {"name": "off"}):
        loss, slopes, marks = composed(
            start, behavior, advantages, mask, objective=objective, veto=chosen
        )
        for ours, reference in zip(
            (loss, slopes, marks["clipped_fraction"]), expected, strict=True
        ):
            assert torch.equal(ours, reference)
        assert not marks.get("vetoed_fraction", torch.zeros(1)).any()


def reduced(
    *, kappa: float, reduction: str, divisor: int
) -> tuple[float, list[list[float]], dict[str, torch.Tensor]]:
    """Return loss, gradient w.r.t. the logprobs, and metrics of two fixed responses.

    One has A = -1 and ratios .5 .05 .9 2, the other A = +1, ratios 1 2 and two tokens of padding.
    """
    ratios = torch.tensor([[0.5, 0.05, 0.9, 2.0], [1.0, 2.0, 1.0, 1.0]], dtype=torch.float64)
    behavior = torch.full((2, 4), -2.0, dtype=torch.float64)
    logprobs = (behavior + ratios.log()).requires_grad_()
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    batch = hand_batch(behavior, torch.tensor([-1.0, 1.0], dtype=torch.float64), mask)
    loss_BT, metrics = UpdateLoss.of(config_of(veto=veto(kappa)))(batch, logprobs, {})
    loss = reduced_loss(loss_BT, mask, reduction, divisor)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.item(), gradient.tolist(), metrics


@table(
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


def test_a_masked_token_keeps_its_kl_term():
    """Vetoed tokens have no policy term; what is left is coefficient x r k3 with its gradient."""
    ratios = torch.tensor([[0.5, 0.05, 0.9, 2.0]], dtype=torch.float64)
    behavior = torch.full((1, 4), -2.0, dtype=torch.float64)
    logprobs = (behavior + ratios.log()).requires_grad_()
    reference = torch.full((1, 4), -3.0, dtype=torch.float64)
    mask = torch.ones(1, 4, dtype=torch.bool)
    batch = hand_batch(behavior, torch.tensor([-1.0]).double(), mask, reference_logprobs=reference)
    kl = {"name": "kl", "coefficient": 0.5}
    loss_BT, metrics = UpdateLoss.of(config_of(veto=veto(KAPPA), reference=kl))(batch, logprobs, {})
    d = reference - logprobs.detach()
    k3 = d.exp() - d - 1
    policy_term = torch.tensor([[0.5, 0.05, 0.0, 0.0]], dtype=torch.float64)  # -r A
    kl_term = ratios * k3
    torch.testing.assert_close(loss_BT.detach(), policy_term + 0.5 * kl_term, rtol=1e-12, atol=0)
    (gradient,) = torch.autograd.grad(loss_BT.sum(), logprobs)
    # d (r k3) / d logprob = r k3 + r (1 - e^d) = -r d
    expected = policy_term - 0.5 * ratios * d
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(metrics["kl_reference"], kl_term, rtol=1e-12, atol=1e-12)


# ---- whole responses ----


def moved(log_ratios: list[list[float]], advantages: list[float], delta: float) -> list[list[bool]]:
    log_ratio_BT = torch.tensor(log_ratios, dtype=torch.float64)
    mask = torch.ones(log_ratio_BT.shape, dtype=torch.bool)
    mask[:, -1] = False  # the last token is padding
    return off_policy(
        log_ratio_BT,
        torch.zeros_like(log_ratio_BT),
        torch.tensor(advantages),
        mask,
        delta=delta,
    ).tolist()


def test_responses_that_the_policy_left_are_removed_if_the_advantage_is_negative():
    # mean of -log r without padding: .75, .5, .75, -2
    rows = [[-1.0, -0.5, 9.0], [-0.75, -0.25, -9.0], [-1.0, -0.5, -9.0], [2.0, 2.0, -9.0]]
    nothing, whole = [False] * 3, [True, True, False]
    assert moved(rows, [-1.0, -1.0, 1.0, -1.0], 0.5) == [whole, nothing, nothing, nothing]
    assert moved(rows, [-1.0, -1.0, 1.0, -1.0], 0.49) == [whole, whole, nothing, nothing]
    assert moved(rows, [0.0, -1.0, -1.0, -1.0], 0.6) == [nothing, nothing, whole, nothing]


def test_a_removed_response_has_no_loss_and_is_reported():
    ratios = torch.tensor([[0.1, 0.2], [0.9, 0.8]], dtype=torch.float64)
    loss, gradient, metrics = composed(
        ratios.log(),
        torch.zeros(2, 2, dtype=torch.float64),
        torch.tensor([-1.0, -1.0]).double(),
        torch.ones(2, 2, dtype=torch.bool),
        veto={"name": "off"},
        sequence_mask={"name": "off_policy", "delta": 0.5},
    )
    assert loss[0].tolist() == gradient[0].tolist() == [0.0, 0.0]
    assert loss[1].tolist() == pytest.approx([0.9, 0.8])
    assert metrics["sequence_masked_fraction"].tolist() == [[True, True], [False, False]]
