"""The options of each task."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mugrpo.config.options import NamedOptions


class ChainOptions(NamedOptions):
    """Chains of small sums, answered by running sums modulo 10 (embedded, needs no data)."""

    name: Literal["chain"] = "chain"
    """Which task."""
    terms: int = Field(8, ge=2, le=64)
    """Terms of a chain; a response has 6 x (terms - 1) - 1 characters."""
    max_digit: int = Field(3, ge=1, le=9)
    """Terms are digits from 1 to this."""
    train_problems: int = Field(4096, ge=1)
    """Distinct problems to train on."""
    eval_problems: int = Field(512, ge=1)
    """Distinct held-out problems."""
    seed: int = Field(0, ge=0)
    """Chooses the problems, apart from the run's seed."""
