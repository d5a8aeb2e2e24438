"""Options of the optimizer and of how an update is computed."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from mugrpo.config.options import Options


class OptimizerOptions(Options):
    """AdamW, its learning-rate schedule (in updates), and how an update is computed."""

    lr: float = Field(1e-4, gt=0)
    """Peak learning rate. Its default is 1e-5 for every model.path but "chain" and "letters"."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Shape of the learning rate after the warm-up, over all updates of the run."""
    warmup_updates: int = Field(0, ge=0)
    """Updates over which the learning rate rises linearly from 0."""
    final_lr_share: float = Field(0.0, ge=0, le=1)
    """The learning rate that a linear or cosine schedule falls to, as a share of the peak. It is
    that of the update after the last: at 0, the last of N updates has 1/N of the peak if linear."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the first and second moment, each in [0, 1). A refresh makes gradients
    larger at once; the second moment must not take a thousand updates to follow."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's denominator constant."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled weight decay, on matrices only."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Largest norm of the gradient; a larger gradient is scaled down to it."""
    micro_batch_tokens: int = Field(4096, ge=1)
    """Most tokens, padding included, that go through the model in one micro-batch. Each response's
    copy of a shared prompt's keys and values counts as an eighth. A longer response is computed
    alone."""

    share_prompts: bool = True
    """Compute a prompt once for all its responses if that is cheaper, with the same gradients."""

    @model_validator(mode="after")
    def _betas_in_range(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas = {list(self.betas)}: each must be in [0, 1)")
        return self
