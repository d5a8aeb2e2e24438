"""Off-policy GRPO's penalized surrogate. B responses, T tokens."""

import torch

from mugrpo.optimize.ratios import log_ratios

METRICS = ("kl_penalty",)
NEEDS_ZERO_ADVANTAGES = True  # because of the penalty


def loss(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    advantages_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    penalty: float,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The unclipped surrogate of off-policy GRPO's constrained problem (arXiv 2505.22257):

        loss_t = -r_t A + penalty (r_t log r_t - r_t + 1)

    The second term is at least 0. Its mean over the behavior policy's samples is
    KL(policy || behavior) of the next token, and its mean gradient is that of this divergence.
    With `penalty` = 0 this is the plain surrogate. Masks and corrections apply to the penalty as
    they do to the rest of the loss.
    """
    assert logprobs_BT.shape == behavior_BT.shape == mask_BT.shape and advantages_B.ndim == 1
    log_ratio_BT = log_ratios(logprobs_BT, behavior_BT)
    ratio_BT = log_ratio_BT.exp()
    kl_BT = ratio_BT * log_ratio_BT - torch.expm1(log_ratio_BT)
    loss_BT = -ratio_BT * advantages_B[:, None] + penalty * kl_BT
    return loss_BT, {"kl_penalty": kl_BT.detach() * mask_BT}
