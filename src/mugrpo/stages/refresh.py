"""A refresh: the engines get the policy's weights, and the canary checks that they have them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mugrpo.config.engines import CANARY_RESPONSES, EngineOptions
from mugrpo.disk.errors import RunStopped
from mugrpo.disk.publishing import passing
from mugrpo.disk.records import Rollout
from mugrpo.engines.base import Decoded, Engine
from mugrpo.model.hardware import out_of_memory_explained
from mugrpo.rollouts.sampler import Draw, Sampler
from mugrpo.run.opening import OpenRun
from mugrpo.stages.sampling import Background, Sampling, at_once

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
    """Return a short response from each engine to each of the first groups.

    The engines answer at once, and `on_decoded` is called in their threads.
    """
    with out_of_memory_explained("generation", options.memory_remedy):
        draws = groups[:CANARY_RESPONSES]
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
            "not match the policy; fix the engine"
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


T = TypeVar("T")


class Refresh:
    """Engines with the policy's weights, and the canary's check of them.

    If other processes compute the trainer's logprobs, they do so beside what the engines do next.
    """

    def __init__(
        self, run: OpenRun, sampling: Sampling, update: int, groups: Sequence[Draw], stage: str
    ) -> None:
        """Give the engines the policy after `update` updates.

        The canary samples responses to the first of `groups`, seeded as those of `stage`.
        """
        self.engines: Sequence[Engine] = sampling.refresh(update)
        self._run = run
        began = time.monotonic()
        rollouts = self._sampled(update, groups, stage)
        # An evaluation may have refreshed the engines to this policy already. That counts here.
        self._spent = {**sampling.spent, "canary": time.monotonic() - began}
        self._gap: float | None = None
        self._logprobs = partial(sampling.trainer_logprobs, update)
        self._comparison = None
        if sampling.compares_elsewhere:
            self._comparison = Background(lambda _: self._compare(rollouts), run.stop.check)
        else:
            self._waited(lambda: self._compare(rollouts))

    def check(self) -> None:
        """Raise Mismatch if the canary has already rejected the engines. Do not wait for it."""
        if self._comparison:
            self._comparison.running()

    def notes(self) -> dict[str, Any]:
        """Wait for the canary. Return its gap, and the seconds of the refresh by its parts.

        Seconds in which the engines did something else do not count. Raises Mismatch if the
        engines' weights or sampling are not the policy's.
        """
        if self._comparison:
            try:
                self._waited(self._comparison.wait)
            finally:
                self.close()
        seconds = sum(self._spent.values())
        return {
            "canary_gap": self._gap,
            "refresh_seconds": seconds,
            "refresh_parts": self._spent,
        }

    def close(self) -> None:
        """Wait until nothing of it is at work any more."""
        if self._comparison:
            self._comparison.close()

    def _waited(self, work: Callable[[], None]) -> None:
        began = time.monotonic()
        work()
        self._spent["canary"] += time.monotonic() - began

    def _sampled(self, update: int, groups: Sequence[Draw], stage: str) -> list[Rollout]:
        config = self._run.config
        samplers = [
            Sampler(
                engine,
                self._run.prompts,
                seed=config.seed,
                stage=stage,
                group_size=1,
                temperature=config.rollouts.temperature,
                max_new_tokens=config.rollouts.max_new_tokens,
                policy_step=update,
            )
            for engine in self.engines
        ]
        return canary_rollouts(samplers, groups, config.engine, lambda _: self._run.stop.check())

    def _compare(self, rollouts: Sequence[Rollout]) -> None:
        config = self._run.config
        self._gap = canary(
            rollouts,
            self._logprobs,
            precision=config.model.precision,
            tolerance=config.canary_tolerance,
            say=self._run.progress.say,
        )


def refreshed(
    run: OpenRun, sampling: Sampling, update: int, groups: Sequence[Draw], stage: str
) -> Sequence[Engine]:
    """Return the engines with the policy after `update` updates, which the canary has checked.

    Raises RunStopped if the canary rejects engines that have just been started.
    """

    def checked() -> Sequence[Engine]:
        refresh = Refresh(run, sampling, update, groups, stage)
        refresh.notes()
        return refresh.engines

    return with_other_engines(run, sampling, checked)


def with_other_engines(run: OpenRun, sampling: Sampling, work: Callable[[], T]) -> T:
    """Return what `work` returns. If the canary rejects its engines, do it with new ones.

    Engines that took the weights while they ran are then started again, now and at every later
    refresh. Raises RunStopped if the canary rejects engines that have just been started.
    """
    try:
        return work()
    except Mismatch:
        if not sampling.distrust_reloads():
            raise
    run.progress.end()
    run.progress.say(
        "the canary found other weights than the policy's after an engine took new ones while it "
        "ran; from now on every refresh starts a new engine"
    )
    return work()
