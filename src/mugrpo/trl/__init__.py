"""TRL's GRPOConfig and GRPOTrainer for scripts that were written for TRL (docs/trl.md)."""

from __future__ import annotations

from mugrpo.trl.config import GRPOConfig
from mugrpo.trl.trainer import GRPOTrainer

__all__ = ["GRPOConfig", "GRPOTrainer"]
