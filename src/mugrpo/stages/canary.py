"""The canary: a check that the engine samples from the policy that the trainer has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mugrpo.config.engines import EngineOptions
from mugrpo.disk.errors import RunStopped
from mugrpo.disk.places import passing
from mugrpo.disk.records import Rollout
from mugrpo.engines.base import Decoded
from mugrpo.model.hardware import out_of_memory_explained
from mugrpo.rollouts.sampler import Draw, Sampler
from mugrpo.stages.background import at_once

_WARNING = 0.5  # of the tolerance
_LONGEST = 16  # most tokens of a response that are compared: a refresh waits for them

Logprobs = Callable[[Sequence[Rollout]], list[NDArray[np.float32]]]


class Mismatch(RunStopped):
    """The engine's weights or sampling do not match the policy."""


def canary_rollouts(
    samplers: Sequence[Sampler],
    groups: Sequence[Draw],
    options: EngineOptions,
    on_decoded: Callable[[Decoded], None],
) -> list[Rollout]:
    """Return a short response from each engine to each of the first `canary_responses` groups.

    The engines answer at once, and `on_decoded` is called in their threads. The list is empty if
    `canary_responses` is 0, which turns the canary off.
    """
    with out_of_memory_explained("generation", options.way_out_of_memory):
        draws = groups[: options.canary_responses]
        sampled = at_once(
            lambda sampler: sampler.sample(draws, on_decoded, samples=1, longest=_LONGEST), samplers
        )
        return [rollout for rollouts in sampled for rollout in rollouts]


def canary(
    rollouts: Sequence[Rollout],
    logprobs: Logprobs,
    *,
    precision: str,
    tolerance: float,
    say: Callable[[str], None],
) -> float | None:
    """Compare the engines' logprobs of `rollouts` with the trainer's, which `logprobs` returns.

    Returns the gap (see `logprob_gap`), or None if there are no rollouts. Warns through `say` if
    the gap is above half of the tolerance. Raises Mismatch if it is above the tolerance,
    because importance ratios would be wrong.
    """
    if not rollouts:
        return None
    passing("canary")
    gap = logprob_gap(logprobs(rollouts), rollouts, precision)
    difference = f"engine and trainer differ by {gap:.3g} in logprob"
    if precision != "fp32":
        difference += " on average"
    if _WARNING * tolerance < gap <= tolerance:
        say(f"canary: {difference}; nothing is wrong yet, but above {tolerance:g} the run stops")
    if not gap <= tolerance:
        raise Mismatch(
            f"canary: {difference} (tolerance {tolerance:g}); the engine's weights or sampling do "
            "not match the policy. Fix the engine, or raise --engine.canary_tolerance (with "
            "--force)"
        )
    return gap


def logprob_gap(
    logprobs: Sequence[NDArray[np.float32]],
    rollouts: Sequence[Rollout],
    precision: str,
) -> float:
    """Return |trainer logprob - behavior logprob| over the tokens of `rollouts`.

    In fp32, return the largest difference. In bf16, return the mean: rounding alone makes the
    largest difference grow with the number of tokens, but not the mean.
    """
    behavior = [rollout.behavior_logprobs for rollout in rollouts]
    gaps_N = np.abs(np.concatenate(logprobs) - np.concatenate(behavior))
    return float(gaps_N.max() if precision == "fp32" else gaps_N.mean())
