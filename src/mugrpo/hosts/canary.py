"""The canary: the engines have the policy's weights if their logprobs are the trainer's."""

import time
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mugrpo.config.engines import CANARY_RESPONSES
from mugrpo.disk.errors import RunStopped
from mugrpo.disk.publishing import failpoint
from mugrpo.disk.records import Rollout
from mugrpo.engines.base import Engine
from mugrpo.hosts.engines import Engines, at_once, samplers_of
from mugrpo.hosts.host import Refreshed
from mugrpo.hosts.reader import LogprobsAt
from mugrpo.hosts.weights import pin_policy
from mugrpo.model.hardware import Precision, precision_of
from mugrpo.model.memory import out_of_memory_explained
from mugrpo.rollouts.sampler import Sampler
from mugrpo.rollouts.schedule import Draw
from mugrpo.run.opening import OpenRun

# The largest gap that rounding explains. In fp32 it is a single token's. In bf16, which keeps 8
# bits of a logit, rounding moves single logprobs by tenths, so it is the mean over tokens.
CANARY_TOLERANCE: Mapping[Precision, float] = {"fp32": 1e-3, "bf16": 0.1}
_WARNING = 0.5  # of the tolerance
_LONGEST = 16  # most tokens of a response that are compared: a refresh waits for them


def canary_rollouts(
    run: OpenRun, engines: Sequence[Engine], update: int, groups: Sequence[Draw], stage: str
) -> list[Rollout]:
    """Return a short response from each engine to each of the first groups, seeded as `stage`'s.

    The first prompt is also repeated up to the length of the stage's longest row, which shows what
    depends on length without sampling so long a response.
    """
    longest = max(len(run.prompts(problem)) for problem, _ in groups)
    longest += max(0, run.config.rollouts.max_new_tokens - _LONGEST)

    def sampled(samplers: tuple[Sampler, Sampler]) -> list[Rollout]:
        short, long = (
            partial(sampler.sample, on_decoded=lambda _: run.stop.check(), longest=_LONGEST)
            for sampler in samplers
        )
        return [*short(groups[:CANARY_RESPONSES]), *long(groups[:1])]

    common = (run, engines, stage, 1, update)
    shorts = samplers_of(*common)
    longs = samplers_of(*common, encode=lambda p: np.resize(run.prompts(p), longest))
    with out_of_memory_explained("generation", run.config.engine.memory_remedy):
        each = at_once(sampled, list(zip(shorts, longs, strict=True)))
    return [rollout for rollouts in each for rollout in rollouts]


def checked_refresh(
    run: OpenRun,
    engines: Engines,
    update: int,
    groups: Sequence[Draw],
    stage: str,
    logprobs: LogprobsAt,
) -> Refreshed:
    """Give the engines the weights after `update` updates, and compare with the trainer's logprobs.

    Raises RunStopped if the engines' logprobs are others, and as `pin_policy` does.
    """
    if stage.isdecimal():
        pin_policy(run.folder, run.config, update, int(stage))
    refreshed = engines.refresh(update)
    began = time.monotonic()
    rollouts = canary_rollouts(run, refreshed, update, groups, stage)
    failpoint("canary")
    gap = checked_gap(run, rollouts, logprobs(update, rollouts))
    # An evaluation may have refreshed the engines to this policy already. That counts here.
    spent = {**engines.spent, "canary": time.monotonic() - began}
    return Refreshed(refreshed, engines.dialogues(), gap, spent)


def checked_gap(
    run: OpenRun, rollouts: Sequence[Rollout], logprobs: Sequence[NDArray[np.float32]]
) -> float:
    """Return the gap between engine and trainer, and say so if it is large.

    Raises RunStopped if it is too large.
    """
    precision = precision_of(run.config.model)
    gap = logprob_gap(logprobs, rollouts, precision)
    if notice := canary_warning(gap, precision, CANARY_TOLERANCE[precision]):
        run.progress.say(notice)
    return gap


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
