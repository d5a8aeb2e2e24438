"""The charts of an update's numbers: which are drawn, in which order, with which captions."""

from __future__ import annotations

from collections.abc import Sequence

from mugrpo.report.figures import Panel, Series
from mugrpo.report.read import RunData


def ratio_panel(sign: str) -> Panel:
    """Return the panel of importance ratios for "positive" or "negative" advantages."""
    name = f"ratio/{sign}"
    return Panel(
        f"Importance ratio, {sign} advantage",
        "policy over behavior policy, per token; shaded: p01 to p99",
        "ratio",
        [
            Series(f"{name}/max", "max", "dotted thin"),
            Series(f"{name}/p99", "p99", "thin"),
            Series(f"{name}/mean", "mean", "dashed"),
            Series(f"{name}/p50", "p50", "thick"),
        ],
        log=True,
        band=(f"{name}/p01", f"{name}/p99"),
    )


def fraction_panels(runs: Sequence[RunData]) -> list[Panel]:
    """Return the fractions that objectives logged: one panel if there is one run, else one each."""
    keys = list(dict.fromkeys(key for run in runs for key in run.keys("update", "", "_fraction")))
    words = {key: key.removesuffix("_fraction").replace("_", " ") for key in keys}
    note = "share of the update's response tokens"
    if len(runs) == 1:
        series = [Series(key, words[key], hue=hue) for hue, key in enumerate(keys)]
        return [Panel("What the objective left out", note, "share", series, low=0)] if keys else []
    return [
        Panel(f"Tokens {words[key]}", note, "share", [Series(key)], low=0, log=False)
        for key in keys
    ]


POLICY = (
    Panel("Entropy", "of the policy", "nats per token", [Series("entropy")], low=0),
    Panel(
        "KL from the behavior policy",
        "KL(β‖π), estimated on β's samples",
        "nats per token",
        [Series("kl_behavior")],
        low=0,
    ),
    Panel(
        "Total variation",
        "from the behavior policy, estimated on its samples; whole responses saturate at 1",
        "total variation",
        [Series("tv_token", "tokens", hue=0), Series("tv_sequence", "responses", "dashed", hue=1)],
        low=0,
    ),
)

BOUND = (
    Panel(
        "Terms of the bound",
        "means over groups with reward variance: L, (1\u2212s)/s·TV(π, β), TV(πₖ, β)",
        "reward",
        [
            Series("bound/surrogate", "surrogate L", "thick", hue=0),
            Series("bound/weighted_tv", "weighted TV", "dashed", hue=1),
            Series("bound/tv_proximal", "TV proximal", "dotted", hue=2),
        ],
        log=False,
    ),
    Panel(
        "Lower bounds on the improvement",
        "on J(π) \u2212 J(πₖ): L minus the other terms, or (as stated) minus twice them",
        "reward",
        [
            Series("bound/factor_one", "factor 1", "thick", hue=0),
            Series("bound/stated", "as stated", "dashed", hue=1),
        ],
        log=False,
    ),
    Panel(
        "Variance weight",
        "mean of (1\u2212s)/s over groups with reward variance",
        "weight",
        [Series("variance_weight")],
        low=0,
    ),
)

OPTIMIZATION = (
    Panel("Loss", "of the update", "loss", [Series("loss")], log=False),
    Panel("Gradient norm", "before clipping", "norm", [Series("grad_norm")], low=0),
    Panel("Learning rate", "of the update", "learning rate", [Series("lr")], low=0, log=False),
)

GROUPS = (
    Panel(
        "Groups without reward variance",
        "they give no gradient",
        "share of groups",
        [Series("zero_variance_share")],
        low=0,
        log=False,
    ),
    Panel(
        "Truncated and failed responses",
        "truncated: cut at the maximum length; failed: could not be scored",
        "share of responses",
        [
            Series("truncated_share", "truncated", hue=0),
            Series("failed_share", "failed", "dashed", hue=1),
        ],
        low=0,
        log=False,
    ),
    Panel(
        "Replayed rollouts",
        "of earlier stages",
        "share of rollouts",
        [Series("replayed_share")],
        low=0,
        log=False,
    ),
    Panel(
        "Staleness of replayed rollouts",
        "mean number of updates since their own policy",
        "updates",
        [Series("replayed_staleness")],
        low=0,
        log=False,
    ),
    Panel(
        "Padding",
        "of the optimizer's micro-batches",
        "share of tokens",
        [Series("padding_share")],
        low=0,
        log=False,
    ),
)
