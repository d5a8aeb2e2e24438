"""Mu-GRPO: GRPO with relaxed clipping and the negative-advantage veto. B responses, T tokens."""

from __future__ import annotations

from typing import Literal

import torch

from mugrpo.optimize.objectives import grpo

METRICS = ("clipped_fraction", "vetoed_fraction")

Scope = Literal["suffix", "trigger", "post_trigger", "from_trigger", "response"]


def loss(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    ratio_clip: tuple[float, float],
    veto_kappa: float,
    veto_scope: Scope,
    dual_clip: float | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Mu-GRPO (arXiv 2605.17570): GRPO's loss, 0 on the tokens that the veto removes.

    The interval [0, 5] is the paper's. The denominator keeps counting vetoed tokens. Equals GRPO
    with the same interval when veto_kappa is 0.
    """
    ratio_BT = (logprobs.detach() - behavior_logprobs).exp()
    vetoed_BT = veto(ratio_BT, advantages, mask, kappa=veto_kappa, scope=veto_scope)
    # A vetoed ratio is taken as 1 before it is computed: it may be infinite, and 0 x inf is NaN.
    loss_BT, metrics = grpo.loss(
        torch.where(vetoed_BT, behavior_logprobs, logprobs),
        behavior_logprobs,
        advantages,
        mask,
        ratio_clip=ratio_clip,
        dual_clip=dual_clip,
    )
    metrics["vetoed_fraction"] = vetoed_BT
    return loss_BT.masked_fill(vetoed_BT, 0.0), metrics


def veto(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    kappa: float,
    scope: Scope,
) -> torch.Tensor:
    """The negative-advantage veto: [B, T], true where a token's update is removed.

        T   = { t : A < 0, r_t < kappa }      trigger tokens
        tau = min T                           no trigger, no veto

    scope "suffix" is H_kappa = { t > tau : r_t >= kappa }, "trigger" T, "post_trigger" t > tau,
    "from_trigger" t >= tau, "response" every t. That the paper's veto is H_kappa with the first
    trigger is inferred from its abstract and captions; kappa is not known from it. Responses with
    a positive advantage are never touched.
    """
    assert ratio.shape == mask.shape and advantages.ndim == 1
    trigger_BT = (advantages[:, None] < 0) & (ratio < kappa) & mask
    reached_BT = trigger_BT.cumsum(-1) > 0  # t >= tau
    after_BT = (trigger_BT.cumsum(-1) - trigger_BT.int()) > 0  # t > tau
    scopes = {
        "suffix": after_BT & ~trigger_BT,
        "trigger": trigger_BT,
        "post_trigger": after_BT,
        "from_trigger": reached_BT,
        "response": trigger_BT.any(-1, keepdim=True).expand_as(mask),
    }
    return scopes[scope] & mask
