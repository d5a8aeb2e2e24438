"""Options of the optimizer, of updates that several processes make together, and of LoRA."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mugrpo.config.options import FIXED, HARMLESS, PROCESSES, Options


class OptimizerOptions(Options):
    """AdamW, its learning-rate schedule (in updates), and how an update is computed."""

    lr: float = Field(1e-4, gt=0)
    """Peak learning rate. Its default is 1e-5 for every model.path but "chain" and "letters"."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Shape of the learning rate after the warm-up, over all updates of the run. It falls to 0
    after the last update."""
    warmup_updates: int = Field(0, ge=0)
    """Updates over which the learning rate rises linearly from 0."""
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

    @model_validator(mode="after")
    def _betas_in_range(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas = {list(self.betas)}: each must be in [0, 1)")
        return self


class DistributedOptions(Options):
    """Processes that make the updates together, each with a part of the weights (FSDP2)."""

    processes: int = Field(1, ge=1, le=PROCESSES, json_schema_extra=HARMLESS)
    """Processes, with a GPU each, on this machine or, with Ray, on several. `mugrpo train` starts
    them once. While engines generate on their GPUs, they move weights and optimizer state to CPU
    memory."""


_MOST = 1 << 16  # no layer is wider


class LoRAOptions(Options):
    """LoRA, by peft: train a small adapter instead of the model, which stays as it is. A layer
    computes W x + alpha / rank B (A x), and only A and B are trained."""

    rank: int = Field(0, ge=0, le=_MOST, json_schema_extra=FIXED)
    """Rows of A and columns of B. 0 trains the whole model."""
    alpha: int = Field(32, ge=1, le=_MOST, json_schema_extra=FIXED)
    """The adapter's output is multiplied by alpha / rank. With the same alpha, about the same
    learning rate is best for every rank."""
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        "all-linear", json_schema_extra=FIXED
    )
    """The layers that get an adapter: all linear ones but the output head, or those whose names end
    like this, such as ["q_proj", "v_proj"]."""
