"""A method as token weights, for the loss of another trainer. B responses, T response tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mugrpo.config.load import build_config
from mugrpo.config.run import PRESETS, RunConfig, beneath
from mugrpo.optimize import advantages
from mugrpo.optimize.experience import advantage_of
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.objectives import TokenTensors

_TABLES = {"advantage", "objective", "reduction", "reference", "sequence_mask", "veto"}


@dataclass(frozen=True)
class Method:
    """A preset, or an objective by itself, whose gradient is a weight on each token's logprob."""

    config: RunConfig
    loss: UpdateLoss

    @classmethod
    def named(cls, name: str, options: dict[str, Any] | None = None) -> Method:
        """Return the method `name`, a preset or an objective, with the `options` of a config.

        `options` are tables as in a TOML file: {"objective": {"negative_weight": 0.5}}. Raises
        ValueError if there is no such method or option, or if the method needs more than a
        micro-batch and the behavior policy's logprobs.
        """
        if others := sorted((options or {}).keys() - _TABLES):
            raise ValueError(f"{', '.join(others)}: a method has only the tables {sorted(_TABLES)}")
        preset = name.replace("_", "-")
        alone = {"preset": "grpo", "objective": {"name": name}, "veto": {"name": "off"}}
        raw = {"preset": preset} if preset in PRESETS else alone
        kind = "" if preset in PRESETS else f", which is no preset ({', '.join(PRESETS)})"
        config = build_config(beneath(raw, options or {}), f"method {name!r}{kind}")
        loss = UpdateLoss(config)
        if loss.objective.prepass or loss.objective.needs:
            raise ValueError(
                f"method {name!r} needs the whole update or a third policy's logprobs, which "
                "another trainer's micro-batch does not hold; use `mugrpo train`"
            )
        return cls(config, loss)

    def advantages(
        self, rewards_PG: torch.Tensor, known_PG: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the advantages of P groups of G responses, and which of them count, both [P, G].

        Rewards that are not known (bool) have none. A zero-variance mask counts out whole groups,
        whose tokens have the weight 0 then.
        """
        options = self.config.advantage
        advantage = advantage_of(options)
        counted_PG = known_PG
        if options.zero_variance_mask:
            counted_PG = known_PG & advantages.varied(rewards_PG, known_PG)[:, None]
        return advantage(rewards_PG, known_PG, **options.knobs), counted_PG

    def weights(
        self,
        logprobs_BT: torch.Tensor,
        behavior_BT: torch.Tensor,
        advantages_B: torch.Tensor,
        mask_BT: torch.Tensor,
        engine_BT: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, TokenTensors]:
        """Return w = -d(sum of the token losses) / d(logprobs), and the metrics, all [B, T].

        So -sum(w x logprobs) has the gradient of the method's policy term, masks included, as have
        its mean over tokens and its means over responses. The weights have no gradient, and are 0
        where `mask_BT` (bool) is false: in padding, and in what an environment said in between,
        which the method does not see. `engine_BT` are the engine's own logprobs, if those of the
        behavior policy are the trainer's.
        """
        assert logprobs_BT.shape == behavior_BT.shape == mask_BT.shape and advantages_B.ndim == 1
        order_BT = (~mask_BT).to(torch.uint8).argsort(dim=-1, stable=True)  # sampled tokens first
        engine_BT = behavior_BT if engine_BT is None else engine_BT
        sampled_BT = mask_BT.gather(-1, order_BT)
        now_BT, then_BT, engine_BT = (
            x.detach().float().gather(-1, order_BT).masked_fill(~sampled_BT, 0.0)
            for x in (logprobs_BT, behavior_BT, engine_BT)
        )
        with torch.enable_grad():
            inputs = (now_BT.requires_grad_(), then_BT, advantages_B.float(), sampled_BT)
            loss_BT, metrics = self.loss.policy_term(*inputs, engine_BT=engine_BT)
            (slope_BT,) = torch.autograd.grad((loss_BT * sampled_BT).sum(), now_BT)

        def back(values_BT: torch.Tensor) -> torch.Tensor:
            values_BT = values_BT.expand_as(mask_BT).to(now_BT.dtype) * sampled_BT
            return torch.zeros_like(now_BT).scatter(-1, order_BT, values_BT)

        return back(-slope_BT), {name: back(values) for name, values in metrics.items()}


def of_responses(advantages_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the advantage of each response, [B], from those of its tokens.

    Raises ValueError if the tokens of a response have different ones: a method weighs responses.
    """
    assert advantages_BT.shape == mask_BT.shape
    first_B1 = mask_BT.int().argmax(-1, keepdim=True)
    advantages_B1 = advantages_BT.gather(-1, first_B1)
    if ((advantages_BT != advantages_B1) & mask_BT).any():
        raise ValueError(
            "the tokens of a response have different advantages, but the method needs one for the "
            "whole response; choose an estimator of groups, such as grpo"
        )
    return advantages_B1[:, 0]
