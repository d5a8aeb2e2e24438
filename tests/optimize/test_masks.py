"""What masks remove, and that they remove nothing else; Mu-GRPO as composed by UpdateLoss."""

from typing import Any

import pytest
import torch

from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.masks import negative_advantage_veto, off_policy
from tests.cases import table
from tests.updates import config_of, hand_batch

SCOPES = ("suffix", "trigger", "post_trigger", "from_trigger", "response")
THRESHOLD = torch.tensor(0.1, dtype=torch.float64).log().exp().item()  # rounded as a ratio is

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
    "ratio exactly the threshold": ([THRESHOLD, 0.9, 2.0], dict.fromkeys(SCOPES, "...")),
}


def removed(
    ratios: list[float],
    advantage: float,
    scope: str,
    *,
    threshold: float = THRESHOLD,
    mask: list[bool] | None = None,
) -> str:
    """The tokens of one response that the veto removes, as in ROWS."""
    log_ratios = torch.tensor([ratios], dtype=torch.float64).log()
    vetoed = negative_advantage_veto(
        log_ratios,
        torch.zeros_like(log_ratios),
        torch.tensor([advantage]),
        torch.tensor([mask or [True] * len(ratios)]),
        threshold=threshold,
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
    loss = UpdateLoss(config_of(**groups))
    loss_BT, metrics = loss(hand_batch(behavior, advantages, mask), logprobs, extra or {})
    assert tuple(metrics) == loss.metrics
    (gradient,) = torch.autograd.grad((loss_BT * mask).sum(), logprobs)
    return loss_BT.detach(), gradient, metrics


def veto(threshold: float, scope: str = "suffix") -> dict[str, Any]:
    return {"name": "negative_advantage", "threshold": threshold, "scope": scope}


def moved(log_ratios: list[list[float]], advantages: list[float], delta: float) -> list[list[bool]]:
    log_ratio_BT = torch.tensor(log_ratios, dtype=torch.float64)
    mask = torch.ones(log_ratio_BT.shape, dtype=torch.bool)
    mask[:, -1] = False  # the last token is padding
    return off_policy(
        log_ratio_BT, torch.zeros_like(log_ratio_BT), torch.tensor(advantages), mask, delta=delta
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
