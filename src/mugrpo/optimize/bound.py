"""Estimate the policy-improvement bound of off-policy GRPO (arXiv 2505.22257, theorem 1).

P groups, G responses per group (padded; padding does not count). A log ratio is that of a whole
response: log w with w = prod_t policy / behavior. All are [P, G].
"""

from __future__ import annotations

import math

import torch

from mugrpo.optimize import advantages

EPS = 1e-4  # in the bound's s = sqrt(var + eps), whatever advantages the update uses

NAMES = (
    "variance_weight",
    "bound/surrogate",
    "bound/weighted_tv",
    "bound/tv_proximal",
    "bound/stated",
    "bound/factor_one",
)


def shortfall(log_ratios: torch.Tensor) -> torch.Tensor:
    """Return max(0, 1 - w) in float64. Its mean under the behavior policy is total variation."""
    return (-log_ratios.double().expm1()).clamp(min=0)


def improvement_bound(
    log_ratios_PG: torch.Tensor,
    proximal_log_ratios_PG: torch.Tensor,
    rewards_PG: torch.Tensor,
    counted_PG: torch.Tensor,
    computed_PG: torch.Tensor,
    *,
    eps: float = EPS,
) -> dict[str, float | None]:
    """Return both lower bounds on J(pi) - J(pi_k) and their terms, as means over groups x.

        A = (R - mean) / s,  s = sqrt(var + eps): the group's mean and population variance
        L = E_x E_alpha[w A]                                                   bound/surrogate
        J(pi) - J(pi_k) >= L - 2 E_x[(1-s)/s TV_x(pi, alpha)] - 2 E_x TV_x(pi_k, alpha)   /stated
        J(pi) - J(pi_k) >= L -   E_x[(1-s)/s TV_x(pi, alpha)] -   E_x TV_x(pi_k, alpha)  /factor_one

    for rewards in [0, 1]. The first bound is the paper's. Both follow from the paper's identity,
    which holds for each group,

        L - (J(pi) - J(pi_k)) = (1-s)/s (J(pi) - J(alpha)) + (J(pi_k) - J(alpha)),

    because |J(p) - J(q)| <= TV(p, q). TV is total variation, alpha the behavior policy, pi_k the
    proximal policy. Every expectation over alpha is a mean over a group's counted responses. A
    group takes part if its counted rewards are not all equal, compared exactly, and all of those
    responses were computed.

    All values are None if no group takes part, or if a counted reward is outside [0, 1]. Since w
    may overflow, any value that is not finite is also None.
    """
    shape = rewards_PG.shape
    assert len(shape) == 2 and log_ratios_PG.shape == proximal_log_ratios_PG.shape == shape
    assert counted_PG.shape == computed_PG.shape == shape
    known = rewards_PG[counted_PG]
    kept_P = advantages.varied(rewards_PG, counted_PG) & (computed_PG | ~counted_PG).all(-1)
    if not kept_P.any() or known.min() < 0 or known.max() > 1:
        return dict.fromkeys(NAMES)
    counted_PG, rewards_PG = counted_PG[kept_P], rewards_PG[kept_P].double()

    def averaged(values_PG: torch.Tensor) -> torch.Tensor:
        return values_PG.masked_fill(~counted_PG, 0.0).sum(-1) / counted_PG.sum(-1)

    centered_PG = rewards_PG - averaged(rewards_PG)[:, None]
    s_P = (averaged(centered_PG**2) + eps).sqrt()
    weight_P = (1 - s_P) / s_P
    ratios_PG = log_ratios_PG[kept_P].double().exp()
    surrogate = (averaged(ratios_PG * centered_PG) / s_P).mean().item()
    weighted = (weight_P * averaged(shortfall(log_ratios_PG[kept_P]))).mean().item()
    proximal = averaged(shortfall(proximal_log_ratios_PG[kept_P])).mean().item()
    values = (
        weight_P.mean().item(),
        surrogate,
        weighted,
        proximal,
        surrogate - 2 * weighted - 2 * proximal,
        surrogate - weighted - proximal,
    )
    named = zip(NAMES, values, strict=True)
    return {name: value if math.isfinite(value) else None for name, value in named}
