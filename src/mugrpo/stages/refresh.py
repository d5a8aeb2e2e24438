"""A refresh: the engines get the policy's weights, and the canary checks that they have them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugrpo.config.engines import CANARY_RESPONSES
from mugrpo.disk.errors import RunStopped
from mugrpo.disk.publishing import passing
from mugrpo.disk.records import Rollout
from mugrpo.engines.base import Engine
from mugrpo.model.hardware import Precision, precision_of
from mugrpo.model.memory import out_of_memory_explained
from mugrpo.rollouts.sampler import Draw, Sampler
from mugrpo.run.opening import OpenRun
from mugrpo.stages.sampling import Background, Sampling, at_once, samplers_of

# The largest gap that rounding explains. In fp32 it is a single token's. In bf16, which keeps 8
# bits of a logit, rounding moves single logprobs by tenths, so it is the mean over tokens.
CANARY_TOLERANCE: Mapping[Precision, float] = {"fp32": 1e-3, "bf16": 0.1}
_WARNING = 0.5  # of the tolerance
_LONGEST = 16  # most tokens of a response that are compared: a refresh waits for them


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
        self._run, self._sampling, self._update = run, sampling, update
        began = time.monotonic()
        rollouts = self._sampled(groups, stage)
        # An evaluation may have refreshed the engines to this policy already. That counts here.
        self._spent = {**sampling.spent, "canary": time.monotonic() - began}
        self._gap: float | None = None
        self._comparison = None
        if sampling.compares_elsewhere:
            # It ignores the check (ranks cannot stop in the middle of an order).
            self._comparison = Background(lambda _: self._compare(rollouts), run.stop.check)
        else:
            self._waited(lambda: self._compare(rollouts))

    def check(self) -> None:
        """Raise RunStopped if the canary has already rejected the engines. Do not wait for it."""
        if self._comparison:
            self._comparison.running()

    def notes(self) -> dict[str, Any]:
        """Wait for the canary. Return its gap, and the seconds of the refresh by its parts.

        Seconds in which the engines did something else do not count. Raises RunStopped if the
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
        """Wait until the comparison has ended."""
        if self._comparison:
            self._comparison.close()

    def _waited(self, work: Callable[[], None]) -> None:
        began = time.monotonic()
        work()
        self._spent["canary"] += time.monotonic() - began

    def _sampled(self, groups: Sequence[Draw], stage: str) -> list[Rollout]:
        """Return a short response from each engine to each of the first groups.

        The last prompt is repeated up to the length of the stage's longest row, which shows what
        depends on length without sampling so long a response.
        """
        run, remedy = self._run, self._run.config.engine.memory_remedy
        longest = max(len(run.prompts(problem)) for problem, _ in groups)
        longest += max(0, run.config.rollouts.max_new_tokens - _LONGEST)

        def sampled(samplers: tuple[Sampler, Sampler]) -> list[Rollout]:
            short, long = (
                partial(sampler.sample, on_decoded=lambda _: run.stop.check(), longest=_LONGEST)
                for sampler in samplers
            )
            return [*short(groups[:CANARY_RESPONSES]), *long(groups[:1])]

        common = (run, self.engines, stage, 1, self._update)
        shorts = samplers_of(*common)
        longs = samplers_of(*common, encode=lambda p: np.resize(run.prompts(p), longest))
        with out_of_memory_explained("generation", remedy):
            each = at_once(sampled, list(zip(shorts, longs, strict=True)))
        return [rollout for rollouts in each for rollout in rollouts]

    def _compare(self, rollouts: Sequence[Rollout]) -> None:
        precision = precision_of(self._run.config.model)
        passing("canary")
        logprobs = self._sampling.trainer_logprobs(self._update, rollouts)
        self._gap = logprob_gap(logprobs, rollouts, precision)
        if notice := canary_warning(self._gap, precision, CANARY_TOLERANCE[precision]):
            self._run.progress.say(notice)


def canary_warning(gap: float, precision: Precision, tolerance: float) -> str | None:
    """Return a warning if the gap between engine and trainer is above half of the tolerance.

    Raises RunStopped if it is above the tolerance, or NaN: importance ratios would be wrong.
    """
    difference = f"canary: engine and trainer differ by {gap:.3g} in logprob"
    if precision != "fp32":
        difference += " on average"
    if not gap <= tolerance:
        raise RunStopped(
            f"{difference} (tolerance {tolerance:g}); the engine's weights or sampling do not "
            "match the policy; fix it, or use another engine.name"
        )
    if gap <= _WARNING * tolerance:
        return None
    return f"{difference}; nothing is wrong yet, but above {tolerance:g} the run stops"


def logprob_gap(
    logprobs: Sequence[NDArray[np.float32]],
    rollouts: Sequence[Rollout],
    precision: Precision,
) -> float:
    """Return |trainer logprob - behavior logprob| over the tokens of `rollouts`.

    In fp32, return the largest difference. In bf16, return the mean: rounding alone makes the
    largest difference grow with the number of tokens, but not the mean.
    """
    behavior = [rollout.behavior_logprobs for rollout in rollouts]
    gaps_N = np.abs(np.concatenate(logprobs) - np.concatenate(behavior))
    return float(gaps_N.max() if precision == "fp32" else gaps_N.mean())


def refreshed(
    run: OpenRun, sampling: Sampling, update: int, groups: Sequence[Draw], stage: str
) -> Sequence[Engine]:
    """Return the engines with the policy after `update` updates, which the canary has checked."""
    refresh = Refresh(run, sampling, update, groups, stage)
    refresh.notes()
    return refresh.engines
