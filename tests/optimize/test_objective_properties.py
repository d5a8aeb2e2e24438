"""Properties of every objective in UpdateLoss, with masks, corrections and a KL term on and off.

Each property is checked on a seeded update and on hypothesis's updates, which have every extreme,
see `objective_cases.updates`.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, note, settings

from mugrpo.config.load import build_config
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.reduction import denominator, reduced_loss
from tests.cases import some, table
from tests.objective_cases import (
    FORMS,
    INF,
    SETTINGS,
    Update,
    evaluated,
    loss_of,
    prepassed,
    same,
    seeded,
    taken,
    updates,
)
from tests.updates import hand_batch

REDUCTIONS = ["token_mean", "sequence_mean", "constant"]
# The default's, clipped, and with a pre-pass over the update: the others are left to
# `make test-all`.
FIRST = ("topr", "grpo", "m2po")
NAMED = [*FIRST, *sorted(FORMS.keys() - set(FIRST))]
every_form = pytest.mark.parametrize("form", some(3, NAMED))


def of_updates(count: int, seed: int) -> Callable[[Any], Any]:
    """Check a property on hypothesis's updates, and first on the one of `seed`."""

    def claim(test: Any) -> Any:
        tried = settings(deadline=None, derandomize=True, max_examples=count)
        return tried(example(update=seeded(seed))(given(update=updates())(test)))

    return claim


@every_form
@of_updates(4, seed=0)
def test_padding_has_no_gradient_and_what_it_holds_changes_nothing(form, update: Update):
    batch = update.batch
    padding = ~batch.mask
    junk = replace(
        batch,
        behavior_logprobs=batch.behavior_logprobs.masked_fill(padding, -0.1),
        stored={n: t.masked_fill(padding, -9.0) for n, t in batch.stored.items()},
    )
    for setting in SETTINGS:
        note(setting)
        loss = loss_of(form, setting)
        losses, gradient, metrics = evaluated(loss, batch, update.logprobs)
        assert not gradient[padding].any()
        other = evaluated(loss, junk, update.logprobs.masked_fill(padding, -INF))
        assert torch.equal(other[0], losses)
        assert torch.equal(other[1], gradient)
        for name, tensor in metrics.items():
            assert torch.equal(other[2][name], tensor)
            assert not tensor[padding].any()


def removed(metrics: dict[str, torch.Tensor], mask_BT: torch.Tensor) -> torch.Tensor:
    """The tokens that a veto, a mask or a correction takes out."""
    removed_BT = torch.zeros_like(mask_BT)
    for name in ("vetoed_fraction", "sequence_masked_fraction"):
        removed_BT = removed_BT | metrics.get(name, removed_BT)
    if "correction_weight" in metrics:
        removed_BT = removed_BT | (metrics["correction_weight"] == 0)
    return removed_BT & mask_BT


REMOVING = [s for s in SETTINGS if s.startswith(("veto", "sequence mask", "masked"))]


@every_form
@of_updates(6, seed=0)
def test_a_removed_token_has_loss_and_gradient_0_and_the_rest_keeps_its_loss(form, update: Update):
    batch = update.batch
    whole, _, _ = evaluated(loss_of(form), batch, update.logprobs)
    for setting in REMOVING:
        note(setting)
        losses, gradient, metrics = evaluated(loss_of(form, setting), batch, update.logprobs)
        removed_BT = removed(metrics, batch.mask)
        assert not losses[removed_BT].any()
        assert not gradient[removed_BT].any()
        if "correction" not in SETTINGS[setting]:
            assert torch.equal(losses, whole.masked_fill(removed_BT, 0.0))


@every_form
@of_updates(4, seed=1)
def test_permuting_responses_changes_nothing_but_order(form, update: Update):
    order = update.order
    for setting in SETTINGS:
        note(setting)
        loss = loss_of(form, setting)
        losses, gradient, metrics = evaluated(loss, update.batch, update.logprobs)
        other = evaluated(loss, taken(update.batch, order), update.logprobs[order])
        same(other[0], losses[order])
        same(other[1], gradient[order])
        for name, tensor in metrics.items():
            same(other[2][name].double(), tensor[order].double())


@every_form
@of_updates(4, seed=7)
def test_splitting_into_micro_batches_changes_nothing(form, update: Update):
    """One pre-pass over the whole update; each micro-batch has its own width."""
    for setting, reduction in zip(SETTINGS, REDUCTIONS * len(SETTINGS), strict=False):
        note(f"{setting}, {reduction}")
        loss = loss_of(form, setting)
        whole = in_parts(loss, update, [len(update.logprobs)], reduction)
        for actual, expected in zip(
            in_parts(loss, update, update.cut, reduction), whole, strict=True
        ):
            same(actual, expected)


def in_parts(
    loss: UpdateLoss, update: Update, cut: list[int], reduction: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what each response adds to the update's loss, and the gradient, from micro-batches."""
    batch, rows = update.batch, len(update.logprobs)
    tokens = int(batch.mask.sum())
    divisor = denominator(reduction, tokens=tokens, responses=rows, max_new_tokens=16)
    logprobs = update.logprobs.clone().requires_grad_()
    extra = prepassed(loss, batch, logprobs)
    shares = []
    for part_rows in torch.arange(rows).split(cut):
        width = int(batch.mask[part_rows].sum(-1).max())
        part = taken(batch, part_rows, width)
        cut_extra = {name: tensor[part_rows, :width] for name, tensor in extra.items()}
        loss_BT, _ = loss(part, logprobs[part_rows, :width], cut_extra)
        reduced_loss(loss_BT, part.mask, reduction, divisor).backward()
        for i in range(len(part_rows)):  # their sum may be a small difference of large numbers
            row = slice(i, i + 1)
            shares.append(reduced_loss(loss_BT[row], part.mask[row], reduction, divisor).detach())
    assert logprobs.grad is not None
    return torch.stack(shares), logprobs.grad


# At ratio 1 no clip, taper or cap is reached, and every objective but three has the gradient of
# -A log pi: grpo and the other min forms (r grad log pi, r = 1), gspo (1/T of its ratio, T times),
# decoupled_ppo (weight 1), m2po (the second moment is 0), topr (the product is 1), cispo and the
# stopped pnpo (weight 1), reinforce (at any ratio), kl_surrogate (its penalty's gradient is
# r log r = 0), vespo (phi(1) = 1). The exceptions are pnpo with the gradient through w, oapl, whose
# loss is a square, and tpo, whose target depends on the whole group.


def at_ratio_1(update: Update) -> Update:
    behavior = update.batch.behavior_logprobs
    stored = dict.fromkeys(update.batch.stored, behavior)
    return replace(update, batch=replace(update.batch, stored=stored), logprobs=behavior)


@every_form
@of_updates(10, seed=0)
def test_at_ratio_1_the_gradient_is_that_of_minus_a_log_pi(form, update: Update):
    """A token of probability 0 counts as a constant and has no gradient. In pnpo token j has A (1/j
    + ... + 1/T), in oapl 2 beta T A, and in tpo the response's share of its group under behavior x
    exp(A) minus that under the behavior policy."""
    update = at_ratio_1(update)
    batch = update.batch
    _, gradient, _ = evaluated(loss_of(form), batch, update.logprobs)
    expected = -batch.advantages[:, None] * batch.mask
    if form == "oapl":
        expected = 2e-3 * expected * batch.mask.sum(-1, keepdim=True)
    if form == "tpo":
        start = (batch.behavior_logprobs.clamp(min=-1e4) * batch.mask).sum(-1)
        for group in batch.groups.unique():
            of = batch.groups == group
            moved = (start[of] + batch.advantages[of]).softmax(0) - start[of].softmax(0)
            expected[of] = -moved[:, None] * batch.mask[of]
    if form == "pnpo":
        width = batch.mask.shape[1]
        shares = batch.mask / torch.arange(1.0, width + 1, dtype=torch.float64)
        expected = expected * shares.flip(-1).cumsum(-1).flip(-1)
    same(gradient, expected.masked_fill(update.logprobs == -INF, 0.0))


@every_form
@of_updates(4, seed=2)
def test_at_ratio_1_masks_and_corrections_are_idle(form, update: Update):
    update = at_ratio_1(update)
    plain = evaluated(loss_of(form), update.batch, update.logprobs)
    for setting in SETTINGS:
        note(setting)
        other = evaluated(loss_of(form, setting), update.batch, update.logprobs)
        same(other[0], plain[0])
        same(other[1], plain[1])


# (log pi, log beta)
PAIRS = {
    "pi 0": (-INF, -1.0),
    "beta 0": (-1.0, -INF),
    "both 0": (-INF, -INF),
    "1e6": (-1.0, -1.0 - math.log(1e6)),
    "1e-6": (-1.0 - math.log(1e6), -1.0),
    "e^100": (-1.0, -101.0),
    "e^-100": (-101.0, -1.0),
    "certain": (0.0, 0.0),
}


def extremes() -> Update:
    """Return one response with all pairs for each sign of the advantage."""
    logprobs, behavior = torch.tensor(list(PAIRS.values())).T[:, None].repeat(1, 3, 1)
    batch = hand_batch(
        behavior,
        torch.tensor([1.0, -1.0, 0.0]),
        torch.ones(behavior.shape, dtype=torch.bool),
        trainer_behavior_logprobs=behavior,
        proximal_logprobs=behavior,
        reference_logprobs=torch.full_like(behavior, -1.0),
    )
    return Update(batch, logprobs, torch.arange(3), [3])


@every_form
@example(update=extremes())
@of_updates(6, seed=3)
def test_extremes_are_finite_under_every_setting(form, update: Update):
    """In fp32, summed as an update sums them."""
    update = update.to(torch.float32)
    batch = update.batch
    for setting in SETTINGS:
        note(setting)
        losses, gradient, metrics = evaluated(loss_of(form, setting), batch, update.logprobs)
        assert losses.isfinite().all()
        assert gradient.isfinite().all()
        assert all(tensor.isfinite().all() for tensor in metrics.values())
        for reduction in REDUCTIONS:
            assert reduced_loss(losses, batch.mask, reduction, 8).isfinite()


# They move a response with advantage 0 back toward the behavior policy.
PULL_BACK = ("kl_surrogate", "oapl", "tpo")


@every_form
@of_updates(4, seed=5)
def test_responses_without_advantage_have_loss_and_gradient_0(form, update: Update):
    """All-equal rewards and groups of one, except for the objectives that pull back."""
    batch = update.batch
    batch = replace(batch, advantages=0 * batch.advantages, varied=batch.varied & False)
    for setting in SETTINGS:
        note(setting)
        losses, gradient, _ = evaluated(loss_of(form, setting), batch, update.logprobs)
        if form in PULL_BACK:
            assert gradient.isfinite().all()
            assert form == "tpo" or (losses >= -1e-15).all()
        else:
            assert not losses.any() and not gradient.any()


# What the trainer relies on, for every form: those of an option that SETTINGS lack, too.
CENTERED = {"name": "grpo", "clip_center": "proximal"}
OBJECTIVES = [*FORMS.values(), CENTERED, {**CENTERED, "level": "sequence"}]


@table("objective", OBJECTIVES)
def test_only_objectives_that_say_so_have_a_gradient_at_advantage_0(objective):
    """For all others, the trainer does not compute responses with advantage 0."""
    loss = UpdateLoss(build_config({"preset": "grpo", "objective": objective}, "test"))
    assert {*loss.objective.needs} <= {"proximal_logprobs"}
    update = seeded(0)
    batch, behavior = update.batch, update.batch.behavior_logprobs
    near = behavior + (update.logprobs - behavior) / 300  # none is clipped as a whole
    batch = replace(batch, stored=dict.fromkeys(batch.stored, near))
    _, gradient, metrics = evaluated(loss, batch, near)
    assert tuple(metrics) == loss.metrics
    nothing = batch.advantages == 0
    assert gradient[nothing].any().item() == loss.objective.needs_zero_advantages
    assert gradient[~nothing].any(-1).all()


@table("setting", SETTINGS)
def test_the_metrics_of_a_loss_are_those_that_it_names(setting):
    update = seeded(0)
    loss = loss_of("grpo", setting)
    assert tuple(evaluated(loss, update.batch, update.logprobs)[2]) == loss.metrics
