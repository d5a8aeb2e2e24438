"""GRPO's token losses: the clipping table, dual clip, and TRL's numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from mugrpo.optimize.objectives import grpo
from mugrpo.optimize.reduction import denominator, reduced_loss

NARROW, RELAXED = (0.8, 1.2), (0.0, 5.0)


def of_ratios(
    ratios: list[float], advantage: float, **knobs: object
) -> tuple[list[float], list[float], list[bool]]:
    """(token losses, weights on grad log pi, clipped) of one response with these ratios.

    The loss is minimized, so the weight on grad log pi is minus the gradient w.r.t. the logprob.
    """
    behavior = torch.full((1, len(ratios)), -1.5, dtype=torch.float64)
    logprobs = (behavior + torch.tensor([ratios], dtype=torch.float64).log()).requires_grad_()
    loss, metrics = grpo.loss(
        logprobs,
        behavior,
        torch.tensor([advantage], dtype=torch.float64),
        torch.ones(1, len(ratios), dtype=torch.bool),
        **knobs,
    )
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    return loss[0].tolist(), (-gradient[0]).tolist(), metrics["clipped_fraction"][0].tolist()


# |A| = 2, so a weight rA is twice the ratio.
@pytest.mark.parametrize(
    ("advantage", "interval", "weights"),
    [
        (2.0, NARROW, [1.0, 2.0, 0.0, 0.0]),
        (2.0, RELAXED, [1.0, 2.0, 4.0, 0.0]),
        (-2.0, NARROW, [0.0, -2.0, -4.0, -12.0]),
        (-2.0, RELAXED, [-1.0, -2.0, -4.0, -12.0]),
    ],
)
def test_weight_on_grad_log_pi_in_every_cell_of_the_clipping_table(advantage, interval, weights):
    _, actual, _ = of_ratios([0.5, 1.0, 2.0, 6.0], advantage, ratio_clip=interval)
    assert actual == pytest.approx(weights, abs=1e-12)


@pytest.mark.parametrize(
    ("advantage", "interval", "losses"),
    [
        (2.0, NARROW, [-1.0, -2.0, -2.4, -2.4]),  # above 1.2: -1.2 x 2
        (2.0, RELAXED, [-1.0, -2.0, -4.0, -10.0]),  # above 5: -5 x 2
        (-2.0, NARROW, [1.6, 2.0, 4.0, 12.0]),  # below 0.8: 0.8 x 2; above 1.2 min takes r A
        (-2.0, RELAXED, [1.0, 2.0, 4.0, 12.0]),  # never clipped
    ],
)
def test_token_losses_of_the_clipping_table(advantage, interval, losses):
    actual, _, _ = of_ratios([0.5, 1.0, 2.0, 6.0], advantage, ratio_clip=interval)
    assert actual == pytest.approx(losses, abs=1e-12)


def test_gradient_stops_at_the_bounds_themselves():
    _, above, _ = of_ratios([1.19, 1.21], 1.0, ratio_clip=NARROW)
    _, below, _ = of_ratios([0.79, 0.81], -1.0, ratio_clip=NARROW)
    assert above == pytest.approx([1.19, 0.0], abs=1e-12)
    assert below == pytest.approx([0.0, -0.81], abs=1e-12)


def test_zero_advantage_has_no_loss_and_no_gradient():
    losses, weights, clipped = of_ratios([0.5, 1.0, 9.0], 0.0, ratio_clip=NARROW, dual_clip=3.0)
    assert losses == weights == [0.0, 0.0, 0.0]
    assert clipped == [False, False, False]


def test_dual_clip_bounds_the_loss_of_negative_tokens_and_ends_their_gradient():
    # A = -2, c = 3: loss = min(2 r, 6); beyond r = 3 it is flat.
    losses, weights, clipped = of_ratios(
        [0.5, 2.0, 4.0, 6.0], -2.0, ratio_clip=RELAXED, dual_clip=3.0
    )
    assert losses == pytest.approx([1.0, 4.0, 6.0, 6.0], abs=1e-12)
    assert weights == pytest.approx([-1.0, -4.0, 0.0, 0.0], abs=1e-12)
    assert clipped == [False, False, True, True]


def test_dual_clip_leaves_positive_tokens_alone():
    losses, weights, clipped = of_ratios(
        [0.5, 2.0, 4.0, 6.0], 2.0, ratio_clip=RELAXED, dual_clip=3.0
    )
    assert losses == pytest.approx([-1.0, -4.0, -8.0, -10.0], abs=1e-12)
    assert weights == pytest.approx([1.0, 4.0, 8.0, 0.0], abs=1e-12)
    assert clipped == [False, False, False, True]


def test_clipped_fraction_marks_tokens_without_gradient_and_no_padding():
    ratios = torch.tensor([[0.5, 1.0, 2.0], [0.5, 1.0, 2.0], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 0, 0]], dtype=torch.bool)
    _, metrics = grpo.loss(
        ratios.log(),
        torch.zeros(3, 3),
        torch.tensor([1.0, -1.0, 1.0]),
        mask,
        ratio_clip=NARROW,
    )
    assert metrics["clipped_fraction"].tolist() == [
        [False, False, True],  # A > 0: above 1.2
        [True, False, False],  # A < 0: below 0.8
        [True, False, False],  # the rest is padding
    ]


# ---- TRL's GRPOTrainer._compute_loss, compared number by number ----


@pytest.fixture(scope="module")
def trl_compute_loss() -> Callable[..., torch.Tensor]:
    """TRL's own loss, unbound: `self` may be any object with the attributes that it reads."""
    from trl import GRPOTrainer

    return GRPOTrainer._compute_loss


MAX_NEW_TOKENS = 11


def random_update(seed: int) -> tuple[torch.Tensor, ...]:
    """Return logprobs, behavior logprobs, advantages and mask of a ragged update.

    Ratios lie inside and outside every interval. Padding holds arbitrary logprobs, which must be
    ignored.
    """
    generator = torch.Generator().manual_seed(seed)
    behavior = -3 * torch.rand(8, 9, generator=generator, dtype=torch.float64)
    log_ratio = 2 * torch.randn(8, 9, generator=generator, dtype=torch.float64)
    advantages = torch.randn(8, generator=generator, dtype=torch.float64)
    advantages[3] = 0.0
    lengths = torch.tensor([9, 1, 4, 7, 2, 9, 5, 3])
    return behavior + log_ratio, behavior, advantages, torch.arange(9) < lengths[:, None]


def trl_result(
    compute_loss: Callable[..., torch.Tensor],
    update: tuple[torch.Tensor, ...],
    *,
    loss_type: str,
    interval: tuple[float, float],
    delta: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, list[float]]]:
    """Return TRL's loss, its gradient w.r.t. the logprobs, and the metrics that TRL logs."""
    logprobs, behavior, advantages, mask = update
    logprobs = logprobs.clone().requires_grad_()
    low, high = interval
    metrics: dict[str, list[float]] = defaultdict(list)
    trainer = SimpleNamespace(
        loss_type=loss_type,
        epsilon_low=1 - low,
        epsilon_high=high - 1,
        args=SimpleNamespace(delta=delta),
        max_completion_length=MAX_NEW_TOKENS,
        importance_sampling_level="token",
        beta=0.0,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        model=SimpleNamespace(training=False),
        accelerator=SimpleNamespace(
            num_processes=1, reduce=lambda x, reduction: x, gather=lambda x: x
        ),
        _metrics={"eval": metrics},
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, 0 * behavior, None),
    )
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.long),
        "completion_ids": torch.zeros(mask.shape, dtype=torch.long),
        "completion_mask": mask.long(),
        "old_per_token_logps": behavior,
        "advantages": advantages,
        "num_items_in_batch": mask.sum(),
    }
    loss = compute_loss(trainer, None, inputs)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient, metrics


def our_result(
    update: tuple[torch.Tensor, ...], *, reduction: str, **knobs: object
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return our loss, its gradient w.r.t. the logprobs, and the clipped fraction."""
    logprobs, behavior, advantages, mask = update
    logprobs = logprobs.clone().requires_grad_()
    tokens = int(mask.sum())
    divisor = denominator(
        reduction, tokens=tokens, responses=len(mask), max_new_tokens=MAX_NEW_TOKENS
    )
    loss_BT, metrics = grpo.loss(logprobs, behavior, advantages, mask, **knobs)
    loss = reduced_loss(loss_BT, mask, reduction, divisor)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient, metrics["clipped_fraction"].sum().item() / tokens


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("interval", [NARROW, RELAXED, (0.8, 1.28), (0.5, 3.0)])
@pytest.mark.parametrize(
    ("loss_type", "reduction"),
    [("grpo", "sequence_mean"), ("dapo", "token_mean"), ("dr_grpo", "constant")],
)
def test_equals_trl_in_value_gradient_and_clipped_fraction(
    trl_compute_loss, loss_type, reduction, interval
):
    for seed in range(3):
        update = random_update(seed)
        theirs, their_gradient, logged = trl_result(
            trl_compute_loss, update, loss_type=loss_type, interval=interval
        )
        ours, our_gradient, clipped = our_result(update, reduction=reduction, ratio_clip=interval)
        assert_same(ours, theirs)
        assert_same(our_gradient, their_gradient)
        assert clipped == pytest.approx(logged["clip_ratio/region_mean"][0], abs=1e-6)
        assert clipped > 0  # otherwise the clip would not be compared


@pytest.mark.slow
@pytest.mark.parametrize(("interval", "c"), [(NARROW, 1.2), (NARROW, 3.0), (RELAXED, 6.0)])
def test_dual_clip_equals_trl_delta_if_not_below_the_upper_bound(trl_compute_loss, interval, c):
    for seed in range(3):
        update = random_update(seed)
        theirs, their_gradient, _ = trl_result(
            trl_compute_loss, update, loss_type="grpo", interval=interval, delta=c
        )
        ours, our_gradient, _ = our_result(
            update, reduction="sequence_mean", ratio_clip=interval, dual_clip=c
        )
        unbounded, _, _ = our_result(update, reduction="sequence_mean", ratio_clip=interval)
        assert_same(ours, theirs)
        assert_same(our_gradient, their_gradient)
        assert ours != unbounded  # otherwise the bound would not be compared


@pytest.mark.slow
def test_within_the_interval_trl_delta_differs_from_dual_clip(trl_compute_loss):
    """Why the test above needs c >= high. Here r = 4, the interval is [0, 5] and c = 3."""
    for advantage, our_loss, trl_loss in (
        (1.0, -4.0, -3.0),  # ours leaves A > 0 alone; TRL: -min(3, 4)
        (-1.0, 3.0, 4.0),  # ours: c |A|; TRL does not bound its clipped branch: -min(-3, -4)
    ):
        update = (
            torch.tensor([[4.0]], dtype=torch.float64).log(),
            torch.zeros(1, 1, dtype=torch.float64),
            torch.tensor([advantage], dtype=torch.float64),
            torch.ones(1, 1, dtype=torch.bool),
        )
        theirs, _, _ = trl_result(
            trl_compute_loss, update, loss_type="grpo", interval=RELAXED, delta=3.0
        )
        ours, _, _ = our_result(
            update, reduction="sequence_mean", ratio_clip=RELAXED, dual_clip=3.0
        )
        assert ours.item() == pytest.approx(our_loss, abs=1e-12)
        assert theirs.item() == pytest.approx(trl_loss, abs=1e-12)


@pytest.mark.parametrize(
    ("advantage", "dual_clip", "expected"),
    [(1.0, None, -5.0), (-1.0, 3.0, 3.0)],  # -clip x A and -c x A
)
def test_an_infinite_ratio_where_the_loss_is_flat_has_gradient_zero(advantage, dual_clip, expected):
    logprobs = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    behavior = torch.tensor([[-100.0, -1.0]])  # e^99 is infinite in float32
    losses, _ = grpo.loss(
        logprobs,
        behavior,
        torch.tensor([advantage]),
        torch.ones(1, 2, dtype=torch.bool),
        ratio_clip=(0.0, 5.0),
        dual_clip=dual_clip,
    )
    losses.sum().backward()
    assert losses[0].tolist() == [expected, -advantage]
    assert logprobs.grad.tolist() == [[0.0, -advantage]]
