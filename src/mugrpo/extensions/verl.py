"""A method as a policy loss of verl. B responses, T response tokens.

The signature is that of `verl.trainer.ppo.core_algos.compute_policy_loss_vanilla`, the same in
verl 0.8 (b178a3c) and 0.10 (1dda039). The page is verl.md.
"""

from collections.abc import Callable
from typing import Any

import torch

from mugrpo.extensions.token_weights import Method, of_responses

PolicyLoss = Callable[..., tuple[torch.Tensor, dict[str, Any]]]


def register(method: str, options: dict[str, Any] | None = None, name: str = "") -> PolicyLoss:
    """Register a method as verl's `policy_loss.loss_mode = name`, and return its loss function.

    The name is the method's own unless another is given. `options` are tables as in a TOML file:
    {"objective": {"negative_weight": 0.5}}. Raises ValueError if there is no such method or option,
    if the method is no weight on a token, or if verl has a loss of that name.
    """
    from verl.trainer.ppo import core_algos

    name, of_tokens = name or method, Method.named(method, options)
    if name in core_algos.POLICY_LOSS_REGISTRY:
        raise ValueError(f"verl has a loss called {name!r}; give register another name for yours")

    def policy_loss(
        old_log_prob: torch.Tensor,
        log_prob: torch.Tensor,
        advantages: torch.Tensor,
        response_mask: torch.Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the loss, aggregated by verl, and the metrics as numbers. All tensors are [B, T].

        `rollout_is_weights` correct for the engine, from it to `old_log_prob`, and multiply ours,
        which correct for staleness from there.
        """
        mask_BT = response_mask.bool()
        advantages_B = of_responses(advantages, mask_BT)
        weights_BT, metrics = of_tokens.weights(log_prob, old_log_prob, advantages_B, mask_BT)
        if rollout_is_weights is not None:
            weights_BT = weights_BT * rollout_is_weights
        loss = core_algos.agg_loss(
            loss_mat=-weights_BT * log_prob,
            loss_mask=response_mask,
            loss_agg_mode=loss_agg_mode,
            **config.global_batch_info,
        )
        metrics["ppo_kl"] = (old_log_prob - log_prob.detach()).masked_fill(~mask_BT, 0.0)
        tokens = mask_BT.sum().clamp(min=1)
        means = {key: (values.sum() / tokens).item() for key, values in metrics.items()}
        return loss, {f"actor/{key}": mean for key, mean in means.items()}

    core_algos.register_policy_loss(name)(policy_loss)
    return policy_loss
