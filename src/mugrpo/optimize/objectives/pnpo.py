"""PNPO: the geometric mean of a prefix's ratios. B responses, T tokens."""

from __future__ import annotations

import torch

from mugrpo.optimize.ratios import finite, log_ratios, ppo_min

METRICS = ("clipped_fraction",)


def loss(
    logprobs: torch.Tensor,
    behavior_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    ratio_clip: tuple[float, float],
    stop_gradient: bool = False,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The PPO min form on the geometric mean of the ratios up to each token:

        w_t = exp(mean over j <= t of log r_j);   loss_t = -min(w_t A, clip(w_t) A)

    With `stop_gradient`, loss_t = -sg[w_t] A log pi_t if the clip lets the token pass, else 0. This
    is PNPO as others describe it; the PPO form around w is inferred. Equals GRPO for responses of
    one token. Without `stop_gradient`, token j's own gradient has the weight A (1/j + ... + 1/T) at
    ratio 1.
    """
    assert logprobs.shape == behavior_logprobs.shape == mask.shape and advantages.ndim == 1
    log_ratio_BT = log_ratios(logprobs, behavior_logprobs)
    counts_T = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    ratio_BT = (log_ratio_BT.cumsum(-1) / counts_T).exp()
    advantages_B1 = advantages[:, None]
    surrogate_BT, clipped_BT = ppo_min(ratio_BT, advantages_B1, *ratio_clip)
    if stop_gradient:
        weight_BT = ratio_BT.detach().masked_fill(clipped_BT, 0.0)
        surrogate_BT = weight_BT * advantages_B1 * finite(logprobs)
    return -surrogate_BT, {"clipped_fraction": clipped_BT & mask}
