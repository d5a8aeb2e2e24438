"""Our losses and gradients equal those of TRL's own code (`tests.trl_losses`), number by number."""

import itertools
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch

from mugrpo.optimize import corrections
from mugrpo.optimize.reference import kl
from tests.cases import table
from tests.trl_losses import (
    DAPO,
    NARROW,
    REDUCTIONS,
    RELAXED,
    SEEDS,
    assert_same,
    objective,
    ours,
    random_update,
    theirs,
    trl_weights,
)


def compare(
    loss_type: str,
    interval: tuple[float, float],
    knobs: dict[str, Any] | None = None,
    trl: dict[str, Any] | None = None,
    **groups: Any,
) -> None:
    """Check some updates, with `knobs` of our objective, `groups` of our config and TRL's `trl`."""
    for seed in SEEDS:
        update = random_update(seed)
        chosen = {"objective": objective(loss_type, interval, **knobs or {}), **groups}
        assert_same(
            ours(update, reduction=REDUCTIONS[loss_type], **chosen),
            theirs(update, loss_type=loss_type, interval=interval, **trl or {}),
        )


THREE = ("grpo", "dapo", "dr_grpo")
LEVELS = [*itertools.product(THREE, ["token", "sequence"]), ("cispo", None)]


@table(
    ("loss_type", "interval", "level", "delta"),
    [
        *itertools.product([*THREE, "bnpo"], [NARROW, RELAXED, DAPO], [None], [None]),
        *(("cispo", (0.0, high), None, None) for high in (5.0, 2.0, 1.2)),
        # GSPO: ours is straight-through per token, TRL's one number per response; sums agree
        *itertools.product(THREE, [NARROW, RELAXED, (1 - 3e-4, 1 + 4e-4)], ["sequence"], [None]),
        *((kind, RELAXED, level, 0.1) for kind, level in LEVELS),
    ],
)
def test_every_loss_type_equals_trl_also_under_the_off_policy_mask(
    loss_type, interval, level, delta
):
    knobs = {"level": level} if level else {}
    masked = {"sequence_mask": {"name": "off_policy", "delta": delta}} if delta else {}
    trl = {"off_policy": delta} if delta else {}
    compare(loss_type, interval, knobs, {**knobs, **trl}, **masked)


def test_vespo_equals_trl():
    """Also beyond the bounds of e^+-20 on a token's ratio and [1e-8, e^20] on a response's."""
    for seed in SEEDS:
        update = random_update(seed)
        far = replace(update, logprobs=update.logprobs * torch.linspace(1, 9, 8)[:, None])
        for one in (update, far):
            assert_same(
                ours(one, reduction="token_mean", objective={"name": "vespo"}),
                theirs(one, loss_type="vespo"),
            )


@table("level", ["token", "sequence"])
@table(("interval", "c"), [(NARROW, 1.2), (NARROW, 3.0), (RELAXED, 6.0)])
def test_dual_clip_equals_trls_delta_if_not_below_the_upper_bound(level, interval, c):
    reached = False
    for seed in range(20):
        update = random_update(seed)
        settings = {"reduction": "sequence_mean", "objective": objective("grpo", interval)}
        settings["objective"]["level"] = level
        unbounded = ours(update, **settings)
        settings["objective"]["dual_clip"] = c
        bounded = ours(update, **settings)
        assert_same(
            bounded, theirs(update, loss_type="grpo", interval=interval, delta=c, level=level)
        )
        reached |= bool(bounded[0] != unbounded[0])
    assert reached


WHOLE = {"level": "sequence"}
MODES = [
    ("token_truncate", {"name": "truncated", "interval": (0.7, 1.3), "level": "token"}, (0.7, 1.3)),
    ("sequence_truncate", {"name": "truncated", "interval": (0.0, 1.3), **WHOLE}, (None, 1.3)),
    ("token_mask", {"name": "masked", "interval": (0.7, 1.4), "level": "token"}, (0.7, 1.4)),
    ("sequence_mask", {"name": "masked", "interval": (0.7, 1.4), **WHOLE}, (0.7, 1.4)),
    ("token_mask", {"name": "masked", "interval": (0.0, 2.0), "level": "token"}, (None, 2.0)),
]


@table(("mode", "correction", "clip"), MODES)
def test_weights_equal_trls(mode, correction, clip):
    reached = 0
    for seed in range(10):
        update = random_update(seed)
        given = (update.trainer, update.engine, update.mask)
        weights_BT = corrections.weights(*given, correction["level"])
        bounded = getattr(corrections, correction["name"])
        weights_BT = bounded(weights_BT, *correction["interval"])
        trl = trl_weights(update, mode, clip).expand_as(weights_BT)
        torch.testing.assert_close(
            weights_BT[update.mask], trl[update.mask], rtol=1e-12, atol=1e-14
        )
        reached += ((trl == 0) | (trl == clip[1]))[update.mask].sum().item()
    assert reached > 0


@table(("mode", "correction", "clip"), MODES)
@table("loss_type", ["grpo", "dapo", "dr_grpo", "cispo"])
def test_corrected_losses_equal_trl(loss_type, mode, correction, clip):
    """Both take the ratio to the trainer's behavior logprobs, so staleness counts once."""
    compare(loss_type, RELAXED, trl={"mode": mode, "clip": clip}, correction=correction)


KL = {"name": "kl", "coefficient": 0.3}


@table("loss_type", ["grpo", "dapo", "dr_grpo", "cispo"])
def test_kl_term_equals_trl(loss_type):
    logged: dict[str, list[float]] = defaultdict(list)
    compare(loss_type, RELAXED, trl={"beta": 0.3, "logged": logged}, reference=KL)
    for update, value in zip(map(random_update, SEEDS), logged["kl"], strict=True):
        kl_BT = kl(update.logprobs, update.trainer, update.reference)
        assert kl_BT[update.mask].mean().item() == pytest.approx(value, rel=1e-12)


def test_kl_term_is_not_masked_weighted_or_bounded_in_either():
    """With token_mask, delta and a clip, which apply to the policy term alone."""
    correction = {"name": "masked", "interval": (0.7, 1.4)}
    trl = {"delta": 3.0, "mode": "token_mask", "clip": (0.7, 1.4), "beta": 0.3}
    compare("dapo", DAPO, {"dual_clip": 3.0}, trl, correction=correction, reference=KL)
