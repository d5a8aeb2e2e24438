"""Masks that remove tokens or whole responses from an update. B responses, T response tokens.

Each function returns [B, T] bool, true for tokens whose policy term is removed. The update's
denominator still counts removed tokens, so that no other token gains weight.
"""

from typing import Literal

import torch

from mugrpo.optimize.ratios import log_ratios, masked_mean

Scope = Literal["suffix", "trigger", "post_trigger", "from_trigger", "response"]


def negative_advantage_veto(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    threshold: float,
    scope: Scope,
) -> torch.Tensor:
    """Return the tokens that Mu-GRPO's negative-advantage veto (arXiv 2605.17570) removes:

        T   = { t : A < 0, r_t < threshold }  trigger tokens
        tau = min T                           no trigger, no veto

    Scope "suffix" removes H = { t > tau : r_t >= threshold }, "trigger" T, "post_trigger" S = all
    t > tau, "response" all t, as on the authors' project page, which writes kappa for tau;
    "from_trigger", all t >= tau, is ours. Responses with a positive advantage are never touched.
    That tau is the first trigger is inferred, and no threshold is stated: the trigger shown there
    has a ratio below 1e-4. `advantages_B` is [B], all other tensors [B, T].
    """
    assert logprobs_BT.shape == behavior_BT.shape == mask_BT.shape and advantages_B.ndim == 1
    ratio_BT = log_ratios(logprobs_BT.detach(), behavior_BT).exp()
    trigger_BT = (advantages_B[:, None] < 0) & (ratio_BT < threshold) & mask_BT
    reached_BT = trigger_BT.cumsum(-1) > 0  # t >= tau
    after_BT = (trigger_BT.cumsum(-1) - trigger_BT.int()) > 0  # t > tau
    scopes = {
        "suffix": after_BT & ~trigger_BT,
        "trigger": trigger_BT,
        "post_trigger": after_BT,
        "from_trigger": reached_BT,
        "response": trigger_BT.any(-1, keepdim=True).expand_as(mask_BT),
    }
    return scopes[scope] & mask_BT


def off_policy(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    delta: float,
) -> torch.Tensor:
    """Return the tokens that DeepSeek-V3.2's sequence mask (arXiv 2512.02556) removes:

        all tokens of a response with A < 0 and mean over t of log(beta_t / pi_t) > delta

    Equals the inverse of TRL's `get_off_policy_mask`, which marks what to keep.
    """
    assert logprobs_BT.shape == behavior_BT.shape == mask_BT.shape and advantages_B.ndim == 1
    moved_B1 = masked_mean(-log_ratios(logprobs_BT.detach(), behavior_BT), mask_BT)
    return (advantages_B[:, None] < 0) & (moved_B1 > delta) & mask_BT
