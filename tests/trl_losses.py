"""Losses and gradients of one update: ours, and those of TRL 1.16's own code.

Ours come from UpdateLoss under a config, TRL's from `GRPOTrainer._compute_loss`. What TRL computes
before that (importance sampling ratios, advantages) comes from the code of its
`_generate_and_score_completions`. TRL is imported on first use, which takes seconds.
"""

import ast
import functools
import inspect
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import torch

from mugrpo.config.load import build_config
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.reduction import denominator, reduced_loss
from tests.updates import hand_batch

MAX_NEW_TOKENS = 11
NARROW, RELAXED, DAPO = (0.8, 1.2), (0.0, 5.0), (0.8, 1.28)
SEEDS = range(4)
REDUCTIONS = {
    "grpo": "sequence_mean",
    "dapo": "token_mean",
    "bnpo": "token_mean",  # TRL averages over a micro-batch, here the only one
    "dr_grpo": "constant",
    "cispo": "token_mean",
    "vespo": "token_mean",
}


VESPO = {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}


@dataclass(frozen=True)
class Update:
    logprobs: torch.Tensor
    trainer: torch.Tensor  # the behavior policy's, by the trainer: TRL's old_per_token_logps
    engine: torch.Tensor  # the same by the engine: TRL's sampling_per_token_logps
    reference: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor


def random_update(seed: int, dtype: torch.dtype = torch.float64) -> Update:
    """Return a ragged update with ratios inside and outside every interval. Advantages have both
    signs, and one is 0. Padding holds arbitrary logprobs, which must be ignored."""
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
    counts = {"tokens": int(update.mask.sum()), "responses": len(update.mask)}
    divisor = denominator(reduction, **counts, max_new_tokens=MAX_NEW_TOKENS)
    logprobs = update.logprobs.clone().requires_grad_()
    loss_BT, _ = UpdateLoss(config)(batch, logprobs, {})
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
    mode: str | None = None,
    clip: tuple[float | None, float | None] = (None, None),
    logged: dict[str, list[float]] | None = None,
) -> Result:
    """Return TRL's loss and its gradient w.r.t. the logprobs. TRL's method accepts any object as
    `self` that has the attributes it reads."""
    from trl import GRPOTrainer

    logprobs = update.logprobs.clone().requires_grad_()
    low, high = interval
    trainer = SimpleNamespace(
        loss_type=loss_type,
        epsilon_low=1 - low,
        epsilon_high=high if loss_type == "cispo" else high - 1,
        args=SimpleNamespace(delta=delta, use_bias_correction_kl=True, **VESPO),
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
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
