"""Lengths of prompts and responses for a plan, measured in a run or assumed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mugrpo.disk.errors import UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet, read_lengths
from mugrpo.extensions.lab.plan.generation import Whole

_POOL = 1 << 15  # responses in an assumed distribution, or read from a stage
_MEDIAN, _SIGMA = 0.25, 0.8  # of an assumed lognormal distribution; the median of the limit


@dataclass(frozen=True)
class Lengths:
    """D groups of G responses, in tokens."""

    prompts: Whole  # [D]
    responses: Whole  # [D, G]
    source: str

    def draw(self, groups: int, size: int, seed: int = 0) -> tuple[Whole, Whole]:
        """Return prompts [groups] and responses [groups, size]: whole groups, at random.

        The groups come in random order, again and again until there are enough. If they have
        another size, responses are drawn from each with replacement.
        """
        rng, count = np.random.default_rng((seed, 0)), len(self.prompts)
        rounds = -(-groups // count)
        order = np.concatenate([rng.permutation(count) for _ in range(rounds)])[:groups]
        responses = self.responses[order]
        if size != responses.shape[1]:
            chosen = rng.integers(0, responses.shape[1], (groups, size))
            responses = np.take_along_axis(responses, chosen, axis=1)
        return self.prompts[order], responses

    def described(self) -> str:
        """Return the source, the mean and the quantiles of the responses."""
        marks = np.quantile(self.responses, [0.1, 0.5, 0.9, 0.99, 1.0])
        names = zip(("10 %", "50 %", "90 %", "99 %", "longest"), marks, strict=True)
        quantiles = ", ".join(f"{name} {mark:,.0f}" for name, mark in names)
        return f"{self.source}: mean {self.responses.mean():,.0f} ({quantiles})"


def assumed(limit: int, *, prompt: int, median: float | None, sigma: float | None) -> Lengths:
    """Return lognormal lengths, cut at `limit` tokens, that are independent of each other.

    Raises UsageError if the median is above the limit.
    """
    middle = _MEDIAN * limit if median is None else median
    spread = _SIGMA if sigma is None else sigma
    if not 0 < middle <= limit:
        raise UsageError(
            f"--median-tokens {middle:g} must be between 1 and the longest response, {limit} "
            "tokens; lower it or raise --rollouts.max_new_tokens"
        )
    drawn = np.random.default_rng(0).lognormal(np.log(middle), spread, (_POOL // 8, 8))
    responses = np.clip(np.rint(drawn), 1, limit).astype(np.int64)
    cut = float((drawn > limit).mean())
    source = f"lognormal, sigma {spread:g}, {cut:.1%} cut at {limit:,} tokens"
    source += " (assumed)" if median is None or sigma is None else ""
    return Lengths(np.full(len(responses), prompt), responses, source)


def from_run(root: Path, limit: int) -> Lengths:
    """Return the lengths of the newest rollouts of a run; those above `limit` tokens are cut.

    Raises UsageError if it has no rollouts.
    """
    folder = RunDir(root)
    for stage in reversed(folder.stages()):
        shards = ShardSet(folder.shards(stage, "rollouts"), "rollouts")
        rows: list[tuple[str, int, int]] = []
        for shard in shards.numbers():
            if len(rows) < _POOL:
                rows += read_lengths(shards, shard)
        if rows:
            # The responses to a problem lie side by side.
            size = next((i for i, row in enumerate(rows) if row[0] != rows[0][0]), len(rows))
            whole = [row[1:] for row in rows[: len(rows) // size * size]]
            table = np.array(whole, np.int64).reshape(-1, size, 2)
            responses = np.minimum(table[:, :, 1], limit)
            return Lengths(table[:, 0, 0], responses, f"{root}, stage {stage}")
    raise UsageError(
        f"{root} has no rollouts to read lengths from; run `mugrpo train` or `mugrpo generate` on "
        "it first, or plan from its config file"
    )
