"""The scale and the cap that a model applies to its logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Shaping:
    """logits = cap tanh(scale x / cap), or scale x without a cap; x = hidden @ weight.T + bias."""

    scale: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, model: Any) -> Shaping:
        """Return what `model` does to its logits, by the names that architectures have for it.

        If another model does more, `probe.untrainable` finds it.
        """
        config = model.config.get_text_config()
        scale = 1.0
        for name in ("logit_scale", "lm_head_multiplier"):  # Cohere, FalconH1
            scale *= getattr(config, name, None) or 1.0
        scaling = getattr(config, "logits_scaling", None) or 1.0  # Granite divides by it
        scale = scale * scaling if config.model_type == "hyperclovax" else scale / scaling
        return cls(scale, getattr(config, "final_logit_softcapping", None))

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        """Return the logits in fp32."""
        logits = raw.float()
        logits = logits if self.scale == 1 else logits * self.scale
        return logits if self.cap is None else (logits / self.cap).tanh_().mul_(self.cap)


PLAIN = Shaping()
