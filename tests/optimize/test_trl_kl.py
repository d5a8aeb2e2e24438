"""The KL term to a reference policy, compared with TRL's own code (`tests.trl_losses`)."""

from collections import defaultdict

import pytest

from mugrpo.optimize.reference import kl
from tests.cases import table
from tests.trl_losses import (
    DAPO,
    REDUCTIONS,
    RELAXED,
    SEEDS,
    assert_same,
    objective,
    ours,
    random_update,
    theirs,
)


@table("loss_type", ["grpo", "dapo", "dr_grpo", "cispo"])
def test_kl_term_equals_trl(loss_type):
    for seed in SEEDS:
        update = random_update(seed)
        logged: dict[str, list[float]] = defaultdict(list)
        assert_same(
            ours(
                update,
                reduction=REDUCTIONS[loss_type],
                objective=objective(loss_type, RELAXED),
                reference={"name": "kl", "coefficient": 0.3},
            ),
            theirs(update, loss_type=loss_type, interval=RELAXED, beta=0.3, logged=logged),
        )
        kl_BT = kl(update.logprobs, update.trainer, update.reference)
        assert kl_BT[update.mask].mean().item() == pytest.approx(logged["kl"][0], rel=1e-12)


def test_kl_term_is_not_masked_weighted_or_bounded_in_either():
    """With token_mask, delta and a clip, which apply to the policy term alone."""
    for seed in SEEDS:
        update = random_update(seed)
        assert_same(
            ours(
                update,
                reduction="token_mean",
                objective=objective("dapo", DAPO, dual_clip=3.0),
                correction={"name": "masked", "interval": (0.7, 1.4)},
                reference={"name": "kl", "coefficient": 0.3},
            ),
            theirs(
                update,
                loss_type="dapo",
                interval=DAPO,
                delta=3.0,
                mode="token_mask",
                clip=(0.7, 1.4),
                beta=0.3,
            ),
        )
