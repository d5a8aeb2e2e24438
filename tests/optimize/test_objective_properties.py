"""What holds of all objectives through UpdateLoss, with masks, corrections and a KL term on and
off. (The contract with the trainer: test_objectives.)"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.updates import hand_batch

from mugrpo.config.load import build_config
from mugrpo.config.registry import CHOICES
from mugrpo.optimize.batching import MicroBatch
from mugrpo.optimize.diagnostics import TokenStatistics
from mugrpo.optimize.reduction import denominator, reduced_loss
from mugrpo.optimize.update_loss import UpdateLoss

NAMES = sorted(CHOICES["objective"].keys() - {"file"})
FORMS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in NAMES},
    "gspo": {"name": "grpo", "level": "sequence"},
    "relaxed": {"name": "grpo", "ratio_clip": (0.0, 5.0)},
    "dual clip": {"name": "grpo", "dual_clip": 3.0},
    "proximal center": {"name": "grpo", "clip_center": "proximal"},
    "pnpo stopped": {"name": "pnpo", "stop_gradient": True},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "veto": {"veto": {"name": "negative_advantage", "kappa": 0.5}},
    "sequence mask": {"sequence_mask": {"name": "off_policy", "delta": 0.1}},
    "truncated": {"correction": {"name": "truncated", "cap": 1.2}},
    "masked": {"correction": {"name": "masked", "interval": (0.8, 1.2)}},
    "masked responses": {"correction": {"name": "masked", "level": "sequence"}},
    "kl": {"reference": {"name": "kl", "coefficient": 0.3}},
    "all": {
        "veto": {"name": "negative_advantage", "kappa": 0.5},
        "sequence_mask": {"name": "off_policy", "delta": 0.1},
        "correction": {"name": "truncated", "cap": 1.2},
        "reference": {"name": "kl", "coefficient": 0.3, "corrected": False},
    },
}
REDUCTIONS = ["token_mean", "sequence_mean", "constant"]


def loss_of(form: str, **groups: Any) -> UpdateLoss:
    return UpdateLoss.of(
        build_config({"preset": "grpo", "objective": FORMS[form], **groups}, "test")
    )


def random_update(seed: int, dtype: torch.dtype = torch.float64) -> tuple[MicroBatch, torch.Tensor]:
    """Ten ragged responses, one-token ones among them; stored logprobs of every kind."""
    generator = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> torch.Tensor:
        return (scale * torch.randn(10, 7, generator=generator, dtype=torch.float64)).to(dtype)

    behavior = -3 * torch.rand(10, 7, generator=generator, dtype=torch.float64).to(dtype)
    advantages = torch.randn(10, generator=generator, dtype=torch.float64).to(dtype)
    advantages[4] = 0.0
    lengths = torch.tensor([7, 1, 3, 7, 2, 1, 6, 4, 5, 2])
    batch = hand_batch(
        behavior,
        advantages,
        torch.arange(7) < lengths[:, None],
        torch.arange(10) % 3 > 0,
        trainer_behavior_logprobs=behavior + normal(0.2),
        proximal_logprobs=behavior + normal(0.3),
        reference_logprobs=behavior + normal(0.5),
    )
    return batch, behavior + normal(0.5)


def taken(batch: MicroBatch, rows: torch.Tensor, width: int | None = None) -> MicroBatch:
    """Some responses of a batch, its padding cut to `width`."""
    return replace(
        batch,
        rows=rows.tolist(),
        mask=batch.mask[rows, :width],
        behavior_logprobs=batch.behavior_logprobs[rows, :width],
        advantages=batch.advantages[rows],
        varied=batch.varied[rows],
        stored={name: tensor[rows, :width] for name, tensor in batch.stored.items()},
    )


def prepassed(loss: UpdateLoss, batch: MicroBatch, logprobs: torch.Tensor) -> dict[str, Any]:
    if loss.objective.prepass is None:
        return {}
    with torch.no_grad():
        return loss.prepass(
            logprobs,
            {
                "behavior_logprobs": batch.behavior_logprobs,
                "advantages": batch.advantages,
                "mask": batch.mask,
                **batch.stored,
            },
        )


Found = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]


def evaluated(loss: UpdateLoss, batch: MicroBatch, logprobs: torch.Tensor) -> Found:
    """(token losses, 0 on padding; the gradient of their sum by the logprobs; metrics)."""
    logprobs = logprobs.clone().requires_grad_()
    loss_BT, metrics = loss(batch, logprobs, prepassed(loss, batch, logprobs))
    loss_BT = loss_BT * batch.mask
    (gradient,) = torch.autograd.grad(loss_BT.sum(), logprobs)
    return loss_BT.detach(), gradient, metrics


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


every_form = pytest.mark.parametrize("form", FORMS)
every_setting = pytest.mark.parametrize("setting", SETTINGS)


# ---- masks ----


@every_setting
@every_form
def test_padding_has_no_gradient_and_what_it_holds_changes_nothing(form, setting):
    loss = loss_of(form, **SETTINGS[setting])
    for seed in range(3):
        batch, logprobs = random_update(seed)
        losses, gradient, metrics = evaluated(loss, batch, logprobs)
        assert not gradient[~batch.mask].any()
        assert gradient[batch.mask].any()
        junk = replace(
            batch,
            behavior_logprobs=batch.behavior_logprobs.masked_fill(~batch.mask, -0.1),
            stored={n: t.masked_fill(~batch.mask, -9.0) for n, t in batch.stored.items()},
        )
        other = evaluated(loss, junk, logprobs.masked_fill(~batch.mask, -30.0))
        assert torch.equal(other[0], losses)
        assert torch.equal(other[1], gradient)
        for name, tensor in metrics.items():
            assert torch.equal(other[2][name], tensor)
            assert not tensor[~batch.mask].any()


@pytest.mark.parametrize(
    ("setting", "removes"),
    [
        ("veto", lambda metrics: metrics["vetoed_fraction"]),
        ("sequence mask", lambda metrics: metrics["sequence_masked_fraction"]),
        ("masked", lambda metrics: metrics["correction_weight"] == 0),
        ("masked responses", lambda metrics: metrics["correction_weight"] == 0),
    ],
)
@every_form
def test_a_removed_token_has_loss_and_gradient_0_and_the_rest_keeps_its_loss(
    form, setting, removes: Callable[..., torch.Tensor]
):
    """But in pnpo the tokens behind it, whose means it is in, still reach it."""
    loss = loss_of(form, **SETTINGS[setting])
    free = loss_of(form)
    reached = 0
    for seed in range(5):
        batch, logprobs = random_update(seed)
        losses, gradient, metrics = evaluated(loss, batch, logprobs)
        removed_BT = removes(metrics) & batch.mask
        assert not losses[removed_BT].any()
        if form != "pnpo" or setting in ("sequence mask", "masked responses"):
            assert not gradient[removed_BT].any()
        if "correction" not in SETTINGS[setting]:
            whole, _, _ = evaluated(free, batch, logprobs)
            assert torch.equal(losses, whole.masked_fill(removed_BT, 0.0))
        reached += removed_BT.sum().item()
    assert reached > 0


# ---- order and cut ----


@every_setting
@every_form
def test_permuting_responses_changes_nothing_but_order(form, setting):
    loss = loss_of(form, **SETTINGS[setting])
    for seed in range(3):
        batch, logprobs = random_update(seed)
        losses, gradient, metrics = evaluated(loss, batch, logprobs)
        rows = torch.randperm(10, generator=torch.Generator().manual_seed(seed))
        other = evaluated(loss, taken(batch, rows), logprobs[rows])
        same(other[0], losses[rows])
        same(other[1], gradient[rows])
        for name, tensor in metrics.items():
            same(other[2][name].double(), tensor[rows].double())


@every_setting
@every_form
def test_splitting_into_micro_batches_changes_nothing(form, setting):
    """One pre-pass over the whole; micro-batches of 1 to 4 responses, each of its own width."""
    loss = loss_of(form, **SETTINGS[setting])
    for reduction in REDUCTIONS:
        _check_cuts(loss, reduction)


def _check_cuts(loss: UpdateLoss, reduction: Any) -> None:
    batch, start = random_update(7)
    divisor = denominator(reduction, tokens=int(batch.mask.sum()), responses=10, max_new_tokens=16)
    results = []
    for cut in ([10], [1, 2, 3, 4], [4, 1, 4, 1], [1] * 10):
        logprobs = start.clone().requires_grad_()
        extra = prepassed(loss, batch, logprobs)
        total = 0.0
        for rows in torch.arange(10).split(cut):
            width = int(batch.mask[rows].sum(-1).max())
            part = taken(batch, rows, width)
            cut_extra = {name: tensor[rows, :width] for name, tensor in extra.items()}
            loss_BT, _ = loss(part, logprobs[rows, :width], cut_extra)
            share = reduced_loss(loss_BT, part.mask, reduction, divisor)
            share.backward()
            total += share.item()
        results.append((torch.tensor(total, dtype=torch.float64), logprobs.grad))
    for value, gradient in results[1:]:
        same(value, results[0][0])
        same(gradient, results[0][1])


# ---- ratio 1 ----


@every_form
def test_at_ratio_1_the_gradient_is_that_of_minus_a_log_pi(form):
    """Exception: pnpo with its gradient through w, where token j has A (1/j + ... + 1/T)."""
    for seed in range(3):
        batch, _ = random_update(seed)
        logprobs = batch.behavior_logprobs
        batch = replace(batch, stored={"proximal_logprobs": logprobs})
        _, gradient, _ = evaluated(loss_of(form), batch, logprobs)
        expected = -batch.advantages[:, None] * batch.mask
        if form == "pnpo":
            shares = batch.mask / torch.arange(1.0, 8.0, dtype=torch.float64)
            expected = expected * shares.flip(-1).cumsum(-1).flip(-1)
        same(gradient, expected)


def test_pnpo_s_exception_keeps_the_sum_over_a_response():
    """1/j + ... + 1/T summed over j is T: the first tokens have more, the last ones less."""
    batch, _ = random_update(0)
    _, gradient, _ = evaluated(loss_of("pnpo"), batch, batch.behavior_logprobs)
    same(gradient.sum(-1), -batch.advantages * batch.mask.sum(-1))


@every_form
@every_setting
def test_at_ratio_1_masks_and_corrections_are_idle(form, setting):
    batch, _ = random_update(2)
    behavior = batch.behavior_logprobs
    stored = dict.fromkeys(batch.stored, behavior)
    batch = replace(batch, stored=stored)
    plain = evaluated(loss_of(form), batch, behavior)
    other = evaluated(loss_of(form, **SETTINGS[setting]), batch, behavior)
    same(other[0], plain[0])
    same(other[1], plain[1])


# ---- extremes: one-token responses in fp32, values by formula ----

INF = math.inf
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


def _log_ratio(logprob: float, behavior: float) -> float:
    if logprob == behavior:
        return 0.0
    return max(-80.0, min(80.0, logprob - behavior))


def _min_form(r: float, a: float, low: float, high: float) -> tuple[float, bool]:
    """(-min(r A, clip(r) A), whether it has a gradient)."""
    clipped = (a > 0 and r > high) or (a < 0 and r < low)
    return -a * (min(max(r, low), high) if clipped else r), not clipped


def expected_of(form: str, logprob: float, behavior: float, a: float) -> tuple[float, float]:
    """(loss, weight on grad log pi) of a one-token response; prox = beta."""
    d = _log_ratio(logprob, behavior)
    r, finite = math.exp(d), max(logprob, -1e4)
    within = float(-80 <= logprob - behavior <= 80)  # false for infinities and nan
    own = float(logprob >= -1e4)
    if form in ("reinforce", "topr", "cispo", "pnpo stopped"):
        weight = {
            "reinforce": a,
            "topr": a if a > 0 else min(r, 1.0) * a,
            "cispo": min(r, 5.0) * a,
            "pnpo stopped": r * a * _min_form(r, a, 0.8, 1.2)[1],
        }[form]
        return -weight * finite, weight * own
    if form == "kl_surrogate":
        value = -r * a + 0.1 * (r * d - math.expm1(d))
        return value, (r * a - 0.1 * r * d) * within
    open_ = {"relaxed": (0.0, 5.0), "m2po": (0.0, INF), "m2po_released": (0.0, INF)}
    low, high = open_.get(form, (0.8, 1.2))
    if form == "m2po" and a * d > 0 and d * d > 0.04:
        return 0.0, 0.0
    if form == "m2po_released" and a * d > 0 and abs(d) > 0.2:
        low, high = math.exp(-0.2), math.exp(0.2)  # cap: sqrt(limit) of one token
    value, passes = _min_form(r, a, low, high)
    if form == "dual clip" and a < 0 and r > 3:
        return -3 * a, 0.0
    return value, r * a * within * passes


@pytest.mark.parametrize("pair", PAIRS)
@every_form
def test_extreme_one_token_responses_have_the_stated_finite_loss_and_gradient(form, pair):
    for advantage in (1.0, -1.0, 0.0, 1e3):
        _check_extreme(form, *PAIRS[pair], advantage)


def _check_extreme(form: str, logprob: float, behavior: float, a: float) -> None:
    behavior_BT = torch.tensor([[behavior]])
    batch = hand_batch(
        behavior_BT,
        torch.tensor([a]),
        torch.ones(1, 1, dtype=torch.bool),
        proximal_logprobs=behavior_BT,
    )
    losses, gradient, _ = evaluated(loss_of(form), batch, torch.tensor([[logprob]]))
    value, weight = expected_of(form, logprob, behavior, a)
    assert losses.item() == pytest.approx(value, rel=1e-4, abs=1e-30)
    # kl_surrogate's r log r is a difference of numbers near .1: fp32 leaves 1e-9
    assert (-gradient).item() == pytest.approx(weight, rel=1e-4, abs=1e-8)


@every_setting
@every_form
def test_extremes_within_longer_responses_are_finite_under_every_setting(form, setting):
    """All pairs in one response of each sign, in fp32, summed as an update sums them."""
    logprobs, behavior = torch.tensor(list(PAIRS.values())).T[:, None].repeat(1, 3, 1)
    batch = hand_batch(
        behavior,
        torch.tensor([1.0, -1.0, 0.0]),
        torch.ones(behavior.shape, dtype=torch.bool),
        trainer_behavior_logprobs=behavior,
        proximal_logprobs=behavior,
        reference_logprobs=torch.full_like(behavior, -1.0),
    )
    loss = loss_of(form, **SETTINGS[setting])
    losses, gradient, _ = evaluated(loss, batch, logprobs)
    assert losses.isfinite().all()
    assert gradient.isfinite().all()
    for reduction in REDUCTIONS:
        assert reduced_loss(losses, batch.mask, reduction, 8).isfinite()


@every_setting
@every_form
def test_responses_without_advantage_have_loss_and_gradient_0(form, setting):
    """All-equal rewards and groups of one. Exceptions: kl_surrogate's penalty, and the KL term."""
    loss = loss_of(form, **SETTINGS[setting])
    batch, logprobs = random_update(5)
    batch = replace(batch, advantages=0 * batch.advantages, varied=batch.varied & False)
    losses, gradient, _ = evaluated(loss, batch, logprobs)
    assert losses.isfinite().all() and gradient.isfinite().all()
    if form == "kl_surrogate":
        assert (losses >= 0).all() and gradient.any()
    else:
        assert not losses.any() and not gradient.any()
    unmasked = loss_of(form, **SETTINGS[setting], advantage={"zero_variance_mask": False})
    _, gradient, _ = evaluated(unmasked, batch, logprobs)
    assert gradient.any() == (form == "kl_surrogate" or "reference" in SETTINGS[setting])


# ---- the effective sample share ----


def share_of(log_ratios: list[list[float]], lengths: list[int], cut: int = 99) -> float:
    """Of responses with these tokens' log ratios, in micro-batches of `cut`."""
    statistics = TokenStatistics([])
    for start in range(0, len(log_ratios), cut):
        log_ratio = torch.tensor(log_ratios[start : start + cut])
        mask = (
            torch.arange(log_ratio.shape[1]) < torch.tensor(lengths[start : start + cut])[:, None]
        )
        batch = hand_batch(torch.zeros_like(log_ratio), torch.ones(len(mask)), mask)
        statistics.add(batch, log_ratio, torch.zeros_like(log_ratio), {})
    return statistics.effective_sample_share()


def test_effective_sample_share_by_hand():
    ln = math.log
    # w = 2 x 3 = 6, 2, padding aside: (6 + 2)^2 / (2 x (36 + 4)) = 64 / 80
    assert share_of([[ln(2), ln(3)], [ln(2), 9.0]], [2, 1]) == pytest.approx(0.8)
    # w = 1, 1, 2: 16 / (3 x 6)
    assert share_of([[0.0], [0.0], [ln(2)]], [1, 1, 1]) == pytest.approx(16 / 18)
    # A common factor has no part in it.
    assert share_of([[5.0], [5.0], [5.0 + ln(2)]], [1, 1, 1]) == pytest.approx(16 / 18)


def test_effective_sample_share_at_its_ends():
    assert share_of([[0.3]] * 4, [1] * 4) == pytest.approx(1.0)
    assert share_of([[0.0], [500.0], [0.0], [0.0]], [1] * 4) == pytest.approx(0.25)
    assert share_of([[-5000.0]], [1]) == pytest.approx(1.0)
    assert share_of([[-INF], [0.0]], [1, 1]) == pytest.approx(0.5)


def test_effective_sample_share_does_not_see_the_cut_and_stays_within_its_bounds():
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        log_ratios = torch.randn(9, 4, generator=generator).tolist()
        lengths = torch.randint(1, 5, (9,), generator=generator).tolist()
        whole = share_of(log_ratios, lengths)
        assert 1 / 9 <= whole <= 1
        assert share_of(log_ratios, lengths, cut=2) == pytest.approx(whole, rel=1e-12)
