"""Our losses and gradients, compared number by number with those of TRL 1.16's own code.

Ours come from UpdateLoss under a config, TRL's from `GRPOTrainer._compute_loss`. What TRL computes
before that (importance sampling ratios, advantages) comes from the code of its
`_generate_and_score_completions`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mugrpo.config.load import build_config
from mugrpo.config.parts import KLReference
from mugrpo.optimize import advantages, corrections, masks, reference
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.objectives import cispo, grpo
from mugrpo.optimize.reduction import denominator, reduced_loss
from tests.updates import hand_batch

pytestmark = pytest.mark.slow  # importing TRL takes seconds

MAX_NEW_TOKENS = 11
NARROW, RELAXED, DAPO = (0.8, 1.2), (0.0, 5.0), (0.8, 1.28)
REDUCTIONS = {
    "grpo": "sequence_mean",
    "dapo": "token_mean",
    "bnpo": "token_mean",  # TRL averages over a micro-batch, here the only one
    "dr_grpo": "constant",
    "cispo": "token_mean",
}


@dataclass(frozen=True)
class Update:
    logprobs: torch.Tensor
    trainer: torch.Tensor  # the behavior policy's, by the trainer: TRL's old_per_token_logps
    engine: torch.Tensor  # the same by the engine: TRL's sampling_per_token_logps
    reference: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor


def random_update(seed: int, dtype: torch.dtype = torch.float64) -> Update:
    """Return a ragged update with ratios inside and outside every interval.

    Advantages have both signs, and one is 0. Padding holds arbitrary logprobs,
    which must be ignored.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> torch.Tensor:
        return scale * torch.randn(8, 9, generator=generator, dtype=torch.float64)

    behavior = -3 * torch.rand(8, 9, generator=generator, dtype=torch.float64)
    of_responses = torch.randn(8, generator=generator, dtype=torch.float64)
    of_responses[3] = 0.0
    # Some responses move little and some much, so means and products fall on both sides too.
    spread = torch.tensor([0.05, 0.3, 2.0, 1.0, 0.3, 0.05, 1.0, 2.0], dtype=torch.float64)[:, None]
    lengths = torch.tensor([9, 1, 4, 7, 2, 9, 5, 3])
    update = Update(
        logprobs=behavior + spread * normal(1.0),
        trainer=behavior,
        engine=behavior + spread * normal(0.5),
        reference=behavior + normal(0.5),
        advantages=of_responses,
        mask=torch.arange(9) < lengths[:, None],
    )
    floats = {f.name: getattr(update, f.name).to(dtype) for f in fields(Update) if f.name != "mask"}
    return replace(update, **floats)


Result = tuple[torch.Tensor, torch.Tensor]


def ours(update: Update, *, reduction: str, varied: Any = True, **groups: Any) -> Result:
    """Return UpdateLoss's loss and its gradient w.r.t. the logprobs, under a config of `groups`."""
    config = build_config({"preset": "grpo", "reduction": reduction, **groups}, "test")
    corrected = config.correction.name != "off"
    batch = hand_batch(
        update.engine if corrected else update.trainer,
        update.advantages,
        update.mask,
        torch.as_tensor(varied).expand(len(update.mask)),
        trainer_behavior_logprobs=update.trainer,
        reference_logprobs=update.reference,
    )
    divisor = denominator(
        reduction,
        tokens=int(update.mask.sum()),
        responses=len(update.mask),
        max_new_tokens=MAX_NEW_TOKENS,
    )
    logprobs = update.logprobs.clone().requires_grad_()
    loss_BT, _ = UpdateLoss.of(config)(batch, logprobs, {})
    loss = reduced_loss(loss_BT, update.mask, reduction, divisor)
    return loss.detach(), torch.autograd.grad(loss, logprobs)[0]


def theirs(
    update: Update,
    *,
    loss_type: str,
    interval: tuple[float, float] = NARROW,
    level: str = "token",
    delta: float | None = None,
    off_policy: float | None = None,
    beta: float = 0.0,
    corrected_kl: bool = True,
    mode: str | None = None,
    clip: tuple[float | None, float | None] = (None, None),
    logged: dict[str, list[float]] | None = None,
) -> Result:
    """Return TRL's loss and its gradient w.r.t. the logprobs.

    TRL's method accepts any object as `self` that has the attributes it reads.
    """
    from trl import GRPOTrainer

    logprobs = update.logprobs.clone().requires_grad_()
    low, high = interval
    trainer = SimpleNamespace(
        loss_type=loss_type,
        epsilon_low=1 - low,
        epsilon_high=high if loss_type == "cispo" else high - 1,
        args=SimpleNamespace(delta=delta, use_bias_correction_kl=corrected_kl),
        max_completion_length=MAX_NEW_TOKENS,
        importance_sampling_level=level,
        beta=beta,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=off_policy,
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        aux_loss_enabled=False,
        use_vllm=mode is not None,
        vllm_importance_sampling_correction=mode is not None,
        _entropy_bonus_enabled=False,
        model=SimpleNamespace(training=False),
        accelerator=SimpleNamespace(
            num_processes=1, reduce=lambda x, reduction: x, gather=lambda x: x
        ),
        _metrics={"eval": defaultdict(list) if logged is None else logged},
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, 0 * update.trainer, None),
    )
    count = len(update.mask)
    inputs = {
        "prompt_ids": torch.zeros(count, 1, dtype=torch.long),
        "prompt_mask": torch.ones(count, 1, dtype=torch.long),
        "completion_ids": torch.zeros(update.mask.shape, dtype=torch.long),
        "completion_mask": update.mask.long(),
        "old_per_token_logps": update.trainer,
        "ref_per_token_logps": update.reference,
        "advantages": update.advantages,
        "num_items_in_batch": update.mask.sum(),
    }
    if mode is not None:
        inputs["sampling_per_token_logps"] = update.engine
        inputs["importance_sampling_ratio"] = trl_weights(update, mode, clip)
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss.detach(), torch.autograd.grad(loss, logprobs)[0]


@functools.cache
def trl_branch(assigns: str) -> Any:
    """Compile the body of the first `if` in TRL's trainer that directly assigns the variable."""
    from trl.trainer import grpo_trainer

    for node in ast.walk(ast.parse(inspect.getsource(grpo_trainer))):
        statements = node.body if isinstance(node, ast.If) else []
        assigned = [t for s in statements if isinstance(s, ast.Assign) for t in s.targets]
        if any(isinstance(t, ast.Name) and t.id == assigns for t in assigned):
            return compile(ast.Module(statements, []), "TRL", "exec")
    raise AssertionError(f"TRL has no branch that assigns {assigns}")


def trl_run(assigns: str, **variables: Any) -> dict[str, Any]:
    """Run that body with `variables`; return the variables afterwards."""
    from trl.trainer import grpo_trainer

    scope = {**vars(grpo_trainer), **variables}
    exec(trl_branch(assigns), scope)
    return scope


def trl_weights(update: Update, mode: str, clip: tuple[float | None, float | None]) -> torch.Tensor:
    """Return TRL's vllm_importance_sampling_ratio, [B, T] or [B, 1]."""
    scope = trl_run(
        "per_token_logps_diff",
        self=SimpleNamespace(
            vllm_importance_sampling_mode=mode,
            vllm_importance_sampling_clip_min=clip[0],
            vllm_importance_sampling_clip_max=clip[1],
        ),
        tool_mask=None,
        completion_mask=update.mask.long(),
        old_per_token_logps=update.trainer,
        sampling_per_token_logps=update.engine,
    )
    return scope["vllm_importance_sampling_ratio"]


def assert_same(ours: Result, theirs: Result, tolerance: float = 1e-12) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert theirs[1].any()


def objective(loss_type: str, interval: tuple[float, float], **knobs: Any) -> dict[str, Any]:
    name = "cispo" if loss_type == "cispo" else "grpo"
    return {"name": name, "ratio_clip": interval, **knobs}


SEEDS = range(4)

# ---- loss types, levels, delta ----


@pytest.mark.parametrize("interval", [NARROW, RELAXED, DAPO])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "bnpo", "dr_grpo"])
def test_every_loss_type_equals_trl(loss_type, interval):
    for seed in SEEDS:
        update = random_update(seed)
        assert_same(
            ours(update, reduction=REDUCTIONS[loss_type], objective=objective(loss_type, interval)),
            theirs(update, loss_type=loss_type, interval=interval),
        )


@pytest.mark.parametrize("high", [5.0, 2.0, 1.2])
def test_cispo_equals_trl_with_low_0(high):
    for seed in SEEDS:
        update = random_update(seed)
        assert_same(
            ours(update, reduction="token_mean", objective=objective("cispo", (0.0, high))),
            theirs(update, loss_type="cispo", interval=(0.0, high)),
        )
    assert "low = 0" in inspect.getdoc(cispo.loss)


def test_only_our_cispo_has_a_lower_bound():
    """TRL has none, whatever epsilon is. Response 2 of seed 0 has ratios below .5."""
    update = random_update(0)
    bounded, _ = ours(update, reduction="token_mean", objective=objective("cispo", (0.5, 5.0)))
    trl, _ = theirs(update, loss_type="cispo", interval=(0.5, 5.0))
    assert (bounded - trl).abs() > 1e-3


def test_cispo_counts_clipped_tokens_of_both_signs_and_trl_only_those_with_a_above_0():
    update = Update(
        logprobs=torch.tensor([[6.0, 1.0], [6.0, 1.0]]).log(),
        trainer=torch.zeros(2, 2),
        engine=torch.zeros(2, 2),
        reference=torch.zeros(2, 2),
        advantages=torch.tensor([1.0, -1.0]),
        mask=torch.ones(2, 2, dtype=torch.bool),
    )
    logged: dict[str, list[float]] = defaultdict(list)
    theirs(update, loss_type="cispo", interval=(0.0, 5.0), logged=logged)
    _, metrics = cispo.loss(
        update.logprobs, update.trainer, update.advantages, update.mask, ratio_clip=(0.0, 5.0)
    )
    assert logged["cispo_clip_ratio"] == [0.25]
    assert metrics["clipped_fraction"].double().mean() == 0.5


@pytest.mark.parametrize("interval", [NARROW, RELAXED, (1 - 3e-4, 1 + 4e-4)])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_sequence_level_equals_trl(loss_type, interval):
    """GSPO: ours is straight-through per token, TRL's has one number per response; sums agree."""
    for seed in SEEDS:
        update = random_update(seed)
        assert_same(
            ours(
                update,
                reduction=REDUCTIONS[loss_type],
                objective=objective(loss_type, interval, level="sequence"),
            ),
            theirs(update, loss_type=loss_type, interval=interval, level="sequence"),
        )


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("interval", "c"), [(NARROW, 1.2), (NARROW, 3.0), (RELAXED, 6.0)])
def test_dual_clip_equals_trls_delta_if_not_below_the_upper_bound(level, interval, c):
    for seed in SEEDS:
        update = random_update(seed)
        assert_same(
            ours(
                update,
                reduction="sequence_mean",
                objective=objective("grpo", interval, dual_clip=c, level=level),
            ),
            theirs(update, loss_type="grpo", interval=interval, delta=c, level=level),
        )


def test_fp32_is_within_1e_6():
    for seed in SEEDS:
        update = random_update(seed, torch.float32)
        for loss_type, interval in (("grpo", NARROW), ("dapo", DAPO), ("cispo", RELAXED)):
            assert_same(
                ours(
                    update,
                    reduction=REDUCTIONS[loss_type],
                    objective=objective(loss_type, interval),
                    reference={"name": "kl", "coefficient": 0.1},
                ),
                theirs(update, loss_type=loss_type, interval=interval, beta=0.1),
                1e-6,
            )


# ---- the off-policy sequence mask ----


@pytest.mark.parametrize("delta", [0.0, 0.1, 0.5])
def test_off_policy_mask_is_the_inverse_of_trls(delta):
    from trl import GRPOTrainer

    kept = dropped = 0
    for seed in range(10):
        update = random_update(seed)
        keep_B1 = GRPOTrainer.get_off_policy_mask(
            update.advantages[:, None], update.logprobs, update.trainer, update.mask.long(), delta
        )
        ours_BT = masks.off_policy(
            update.logprobs, update.trainer, update.advantages, update.mask, delta=delta
        )
        assert torch.equal(ours_BT, (keep_B1 == 0) & update.mask)
        dropped += ours_BT.any(-1).sum().item()
        kept += (~ours_BT.any(-1) & (update.advantages < 0)).sum().item()
    assert kept > 0
    assert dropped > 0


@pytest.mark.parametrize(
    ("loss_type", "level"),
    [*itertools.product(["grpo", "dapo", "dr_grpo"], ["token", "sequence"]), ("cispo", "token")],
)
def test_loss_under_the_off_policy_mask_equals_trl(loss_type, level):
    knobs = {} if loss_type == "cispo" else {"level": level}
    for seed in SEEDS:
        update = random_update(seed)
        assert_same(
            ours(
                update,
                reduction=REDUCTIONS[loss_type],
                objective=objective(loss_type, RELAXED, **knobs),
                sequence_mask={"name": "off_policy", "delta": 0.1},
            ),
            theirs(update, loss_type=loss_type, interval=RELAXED, level=level, off_policy=0.1),
        )


def test_off_policy_mask_under_a_correction_measures_from_the_engine_as_trls_does():
    for seed in range(10):
        update = random_update(seed)
        assert_same(
            ours(
                update,
                reduction="sequence_mean",
                objective=objective("grpo", NARROW),
                sequence_mask={"name": "off_policy", "delta": 0.1},
                correction={"name": "truncated", "cap": 2.0},
            ),
            theirs(
                update, loss_type="grpo", off_policy=0.1, mode="token_truncate", clip=(None, 2.0)
            ),
        )


# ---- truncated and masked importance sampling ----

MODES = [
    ("token_truncate", {"name": "truncated", "cap": 1.3, "level": "token"}, (None, 1.3)),
    ("sequence_truncate", {"name": "truncated", "cap": 1.3, "level": "sequence"}, (None, 1.3)),
    ("token_mask", {"name": "masked", "interval": (0.7, 1.4), "level": "token"}, (0.7, 1.4)),
    ("sequence_mask", {"name": "masked", "interval": (0.7, 1.4), "level": "sequence"}, (0.7, 1.4)),
    ("token_mask", {"name": "masked", "interval": (0.0, 2.0), "level": "token"}, (None, 2.0)),
]


@pytest.mark.parametrize(("mode", "correction", "clip"), MODES)
def test_weights_equal_trls(mode, correction, clip):
    knobs = {k: v for k, v in correction.items() if k != "name"}
    reached = 0
    for seed in range(10):
        update = random_update(seed)
        function = getattr(corrections, correction["name"])
        weights_BT = function(update.trainer, update.engine, update.mask, **knobs)
        trl = trl_weights(update, mode, clip).expand_as(weights_BT)
        torch.testing.assert_close(
            weights_BT[update.mask], trl[update.mask], rtol=1e-12, atol=1e-14
        )
        reached += ((trl == 0) | (trl == clip[1]))[update.mask].sum().item()
    assert reached > 0
    assert mode in inspect.getdoc(function)


@pytest.mark.parametrize(("mode", "correction", "clip"), MODES)
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "cispo"])
def test_corrected_losses_equal_trl(loss_type, mode, correction, clip):
    """Both take the ratio to the trainer's behavior logprobs, so staleness counts once."""
    for seed in SEEDS:
        update = random_update(seed)
        assert_same(
            ours(
                update,
                reduction=REDUCTIONS[loss_type],
                objective=objective(loss_type, RELAXED),
                correction=correction,
            ),
            theirs(update, loss_type=loss_type, interval=RELAXED, mode=mode, clip=clip),
        )


def test_truncation_has_no_lower_bound_and_trls_has_an_optional_one():
    update = random_update(0)
    trl = trl_weights(update, "token_truncate", (0.9, 1.3))[update.mask]
    weights = corrections.truncated(
        update.trainer, update.engine, update.mask, cap=1.3, level="token"
    )[update.mask]
    assert trl.min() == 0.9
    assert weights.min() < 0.9
    torch.testing.assert_close(weights.clamp(min=0.9), trl)


@pytest.mark.parametrize(("mode", "correction", "clip"), MODES)
def test_sequence_level_under_a_correction(mode, correction, clip):
    """GSPO. With one weight per response, values and gradients are equal.

    With one weight per token, only the values are: in the gradient, TRL gives every token the mean
    weight sum_t w_t / T, and ours gives token j its own weight w_j.
    """
    for seed in SEEDS:
        update = random_update(seed)
        our = ours(
            update,
            reduction="sequence_mean",
            objective=objective("grpo", RELAXED, level="sequence"),
            correction=correction,
        )
        trl = theirs(
            update, loss_type="grpo", interval=RELAXED, level="sequence", mode=mode, clip=clip
        )
        if correction["level"] == "sequence":
            assert_same(our, trl)
            continue
        torch.testing.assert_close(our[0], trl[0], rtol=1e-12, atol=1e-14)
        assert (our[1] - trl[1]).abs().max() > 1e-3
        lengths_B1 = update.mask.sum(-1, keepdim=True)
        torch.testing.assert_close(our[1].sum(-1), trl[1].sum(-1), rtol=1e-12, atol=1e-14)
        flat_BT = (our[1].sum(-1, keepdim=True) / lengths_B1) * update.mask
        torch.testing.assert_close(flat_BT, trl[1], rtol=1e-12, atol=1e-14)


# ---- the KL term ----


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "cispo"])
def test_kl_term_equals_trl_in_both_forms(loss_type, corrected):
    for seed in SEEDS:
        update = random_update(seed)
        logged: dict[str, list[float]] = defaultdict(list)
        assert_same(
            ours(
                update,
                reduction=REDUCTIONS[loss_type],
                objective=objective(loss_type, RELAXED),
                reference={"name": "kl", "coefficient": 0.3, "corrected": corrected},
            ),
            theirs(
                update,
                loss_type=loss_type,
                interval=RELAXED,
                beta=0.3,
                corrected_kl=corrected,
                logged=logged,
            ),
        )
        kl_BT = reference.kl(update.logprobs, update.trainer, update.reference, corrected=corrected)
        assert kl_BT[update.mask].mean().item() == pytest.approx(logged["kl"][0], rel=1e-12)


def test_uncorrected_kl_is_the_same_at_both_levels_as_in_trl():
    update = random_update(1)
    assert_same(
        ours(
            update,
            reduction="sequence_mean",
            objective=objective("grpo", NARROW, level="sequence"),
            reference={"name": "kl", "coefficient": 0.3, "corrected": False},
        ),
        theirs(update, loss_type="grpo", level="sequence", beta=0.3, corrected_kl=False),
    )


def test_at_the_sequence_level_trl_corrects_kl_by_the_response_ratio_and_we_by_the_token_ratio():
    update = random_update(1)
    settings = {"reduction": "sequence_mean", "objective": objective("grpo", NARROW)}
    kl = {"name": "kl", "coefficient": 0.3}
    ours_token, _ = ours(update, **settings, reference=kl)
    plain_token, _ = ours(update, **settings)
    settings["objective"] = objective("grpo", NARROW, level="sequence")
    ours_sequence, _ = ours(update, **settings, reference=kl)
    plain_sequence, _ = ours(update, **settings)
    trl, _ = theirs(update, loss_type="grpo", level="sequence", beta=0.3)
    torch.testing.assert_close(ours_sequence - plain_sequence, ours_token - plain_token)
    assert (ours_sequence - trl).abs() > 1e-3


@pytest.mark.parametrize("corrected", [True, False])
def test_kl_term_is_not_masked_weighted_or_bounded_in_either(corrected):
    """With token_mask, delta and a clip, which apply to the policy term alone."""
    for seed in SEEDS:
        update = random_update(seed)
        assert_same(
            ours(
                update,
                reduction="token_mean",
                objective=objective("dapo", DAPO, dual_clip=3.0),
                correction={"name": "masked", "interval": (0.7, 1.4)},
                reference={"name": "kl", "coefficient": 0.3, "corrected": corrected},
            ),
            theirs(
                update,
                loss_type="dapo",
                interval=DAPO,
                delta=3.0,
                mode="token_mask",
                clip=(0.7, 1.4),
                beta=0.3,
                corrected_kl=corrected,
            ),
        )


def test_kl_term_with_the_off_policy_mask_equals_trl():
    for seed in SEEDS:
        update = random_update(seed)
        assert_same(
            ours(
                update,
                reduction="sequence_mean",
                objective=objective("grpo", NARROW),
                sequence_mask={"name": "off_policy", "delta": 0.1},
                reference={"name": "kl", "coefficient": 0.3},
            ),
            theirs(update, loss_type="grpo", off_policy=0.1, beta=0.3),
        )


def test_kl_of_groups_without_variance_counts_in_trl_and_in_ours_without_the_mask():
    update = random_update(1)
    varied = torch.arange(8) >= 4
    update = replace(update, advantages=update.advantages * varied)
    trl = theirs(update, loss_type="grpo", beta=0.3)
    settings = {
        "reduction": "sequence_mean",
        "objective": objective("grpo", NARROW),
        "reference": {"name": "kl", "coefficient": 0.3},
        "varied": varied,
    }
    assert_same(ours(update, **settings, advantage={"zero_variance_mask": False}), trl)
    _, gradient = ours(update, **settings)
    assert not gradient[:4].any()
    assert trl[1][:4].any()


def test_trl_corrects_the_kl_by_default():
    from trl import GRPOConfig

    defaults = {f.name: f.default for f in fields(GRPOConfig)}
    assert defaults["use_bias_correction_kl"] is True
    assert "use_bias_correction_kl" in inspect.getdoc(reference.kl)


def test_the_option_does_not_contradict_trls_default():
    assert "does not by default" not in " ".join(
        KLReference.model_fields["corrected"].description.split()
    )


# ---- advantages ----


def trl_advantages(rewards_PG: torch.Tensor, scale: str) -> torch.Tensor:
    """Return TRL's advantages. A reward of NaN is unknown."""
    scope = trl_run(
        "mean_grouped_rewards",
        self=SimpleNamespace(reward_weights=torch.ones(1).double(), scale_rewards=scale),
        rewards_per_func=rewards_PG.reshape(-1, 1),
        unscorable_mask=rewards_PG.reshape(-1).isnan(),
        num_generations=rewards_PG.shape[1],
        device="cpu",
    )
    return scope["advantages"].nan_to_num(nan=0.0).reshape(rewards_PG.shape)


@pytest.mark.parametrize(("scale", "std"), [("group", "unbiased"), ("none", "none")])
def test_advantages_equal_trls_even_if_rewards_are_unknown(scale, std):
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        rewards_PG = torch.randint(0, 3, (6, 5), generator=generator).double() / 2
        unknown_PG = torch.rand(6, 5, generator=generator) < 0.2
        unknown_PG[:, 0] = False
        expected = trl_advantages(rewards_PG.masked_fill(unknown_PG, math.nan), scale)
        actual = advantages.group(rewards_PG, ~unknown_PG, std=std)
        # TRL's n / (n - 1) is in fp32
        torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-12)


def test_docstring_of_grpo_names_the_switches_that_equal_trl():
    text = inspect.getdoc(grpo.loss)
    for name in ("epsilon_high", "importance_sampling_level", "delta"):
        assert name in text


def test_docstring_of_grpo_names_where_the_sequence_level_differs_from_trl():
    text = " ".join(inspect.getdoc(grpo.loss).split())
    assert "correction" in text and "KL" in text
