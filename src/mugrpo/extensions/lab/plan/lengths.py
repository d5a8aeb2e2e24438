"""The lengths of prompts and responses that a plan is made with: stored, given or assumed."""

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
class Seen:
    """D groups of G responses of the policy after `update` updates."""

    update: int
    prompts: Whole  # [D]
    responses: Whole  # [D, G]


@dataclass(frozen=True)
class Lengths:
    """Lengths over a run: the newest that are not newer than an update count for it."""

    seen: tuple[Seen, ...]  # ascending in `update`
    source: str

    def at(self, update: int) -> Seen:
        """Return the lengths of the policy after `update` updates."""
        return max((s for s in self.seen if s.update <= update), default=self.seen[0], key=_update)

    def draw(self, update: int, groups: int, size: int, seed: int = 0) -> tuple[Whole, Whole]:
        """Return prompts [groups] and responses [groups, size]: whole groups, at random.

        The groups that were seen come in random order, again and again until there are enough. If
        they have another size, responses are drawn from each with replacement.
        """
        seen, rng = self.at(update), np.random.default_rng((seed, update))
        count = len(seen.prompts)
        rounds = -(-groups // count)
        order = np.concatenate([rng.permutation(count) for _ in range(rounds)])[:groups]
        responses = seen.responses[order]
        if size != responses.shape[1]:
            chosen = rng.integers(0, responses.shape[1], (groups, size))
            responses = np.take_along_axis(responses, chosen, axis=1)
        return seen.prompts[order], responses

    def described(self) -> str:
        """Return the source, the mean and the quantiles of the first and of the last lengths."""
        texts = []
        for seen in dict.fromkeys([0, len(self.seen) - 1]):
            one = self.seen[seen]
            marks = np.quantile(one.responses, [0.1, 0.5, 0.9, 0.99, 1.0])
            names = zip(("10 %", "50 %", "90 %", "99 %", "longest"), marks, strict=True)
            of = f" after update {one.update}" if len(self.seen) > 1 else ""
            quantiles = ", ".join(f"{name} {mark:,.0f}" for name, mark in names)
            texts.append(f"mean {one.responses.mean():,.0f}{of} ({quantiles})")
        return f"{self.source}: {'; '.join(texts)}"


def _update(seen: Seen) -> int:
    return seen.update


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
    return Lengths((Seen(0, np.full(len(responses), prompt), responses),), source)


def from_run(root: Path, limit: int) -> Lengths:
    """Return the lengths of a run's rollouts, stage by stage.

    Raises UsageError if it has no rollouts, or one that is above the limit.
    """
    folder, seen = RunDir(root), list[Seen]()
    for stage in folder.stages():
        shards = ShardSet(folder.shards(stage, "rollouts"), "rollouts")
        update: int | None = None
        rows: list[tuple[str, int, int]] = []
        for shard in shards.numbers():
            if shards.fault(shard) is None and len(rows) < _POOL:
                update = shards.entry(shard).get("policy_step", update)
                rows += read_lengths(shards, shard)
        if rows and update is not None:
            seen.append(_grouped(update, rows))
    if not seen:
        raise UsageError(
            f"{root} has no rollouts to read lengths from; run `mugrpo train` or `mugrpo generate` "
            "on it first, or plan from its config file"
        )
    longest = max(int(one.responses.max()) for one in seen)
    if longest > limit:
        raise UsageError(
            f"{root} has a response of {longest:,} tokens, but the longest is {limit:,}; raise "
            "--rollouts.max_new_tokens, or give lengths of runs with that limit"
        )
    return Lengths(tuple(sorted(seen, key=_update)), str(root))


def _grouped(update: int, rows: list[tuple[str, int, int]]) -> Seen:
    """Return the lengths in rows of (problem id, prompt tokens, response tokens), by group.

    The responses to a problem lie side by side. The size is that of the first group.
    """
    first = rows[0][0]
    size = next((i for i, row in enumerate(rows) if row[0] != first), len(rows))
    whole = len(rows) // size * size
    table = np.array([row[1:] for row in rows[:whole]], np.int64).reshape(-1, size, 2)
    return Seen(update, table[:, 0, 0], table[:, :, 1])
