"""The canary: the engines have the policy's weights if their logprobs are the trainer's.

Each refresh changes the weights, and pays for a few tokens of one group. What depends on lengths is
the engine's own, so it is tried once, when the engines have started.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mugrpo.config.engines import CANARY_RESPONSES, TRIAL_GROUPS
from mugrpo.disk.errors import RunStopped
from mugrpo.disk.publishing import failpoint
from mugrpo.disk.records import Rollout
from mugrpo.engines.base import Engine
from mugrpo.hosts.engines import Engines, at_once, samplers_of
from mugrpo.hosts.host import Refreshed
from mugrpo.hosts.weights import pin_policy
from mugrpo.model.hardware import Precision, precision_of
from mugrpo.model.memory import out_of_memory_explained
from mugrpo.rollouts.sampler import Sampler
from mugrpo.rollouts.schedule import Draw
from mugrpo.run.opening import OpenRun

# The largest gap that rounding explains. In fp32 it is a single token's. In bf16, which keeps 8
# bits of a logit, rounding moves single logprobs by tenths, so it is the mean over tokens.
CANARY_TOLERANCE: Mapping[Precision, float] = {"fp32": 1e-3, "bf16": 0.1}
LogprobsOfSets = Callable[..., Iterator[list[NDArray[np.float32]]]]  # of (update, rollouts, ...)
_WARNING = 0.5  # of the tolerance
# Half as many tokens and responses reach bf16's tolerance by rounding alone, once in 60 draws.
_PROMPT, _TOKENS, _TRIED = 16, 2, 16  # most tokens of a prompt, a response, and one of a trial


def canary_rollouts(
    run: OpenRun, engines: Sequence[Engine], update: int, groups: Sequence[Draw], stage: str
) -> list[Rollout]:
    """Return short responses of each engine to the first of `groups`, seeded as those of `stage`.

    They share the end of one prompt: prompts cost more than the tokens that are compared.
    """
    common = (run, engines, stage, CANARY_RESPONSES, update)
    samplers = samplers_of(*common, encode=lambda p: run.prompts(p)[-_PROMPT:])
    return _sampled(run, samplers, groups[:1], _TOKENS)


def trial_rollouts(
    run: OpenRun, engines: Sequence[Engine], update: int, groups: Sequence[Draw], stage: str
) -> list[Rollout]:
    """Return a response from each engine to each of the first groups, and one in a long row.

    For the latter, the first prompt is repeated up to the length of the stage's longest row, which
    shows what depends on length without sampling so long a response.
    """
    longest = max(len(run.prompts(problem)) for problem, _ in groups)
    longest += max(0, run.config.rollouts.max_new_tokens - _TRIED)
    common = (run, engines, stage, 1, update)
    long = samplers_of(*common, encode=lambda p: np.resize(run.prompts(p), longest))
    return [
        *_sampled(run, samplers_of(*common), groups[:TRIAL_GROUPS], _TRIED),
        *_sampled(run, long, groups[:1], _TRIED),
    ]


def _sampled(
    run: OpenRun, samplers: Sequence[Sampler], groups: Sequence[Draw], longest: int
) -> list[Rollout]:
    def sampled(sampler: Sampler) -> Sequence[Rollout]:
        return sampler.sample(groups, lambda _: run.stop.check(), longest=longest)

    with out_of_memory_explained("generation", run.config.engine.memory_remedy):
        return [rollout for rollouts in at_once(sampled, samplers) for rollout in rollouts]


def checked_refresh(
    run: OpenRun,
    engines: Engines,
    update: int,
    groups: Sequence[Draw],
    stage: str,
    logprobs: LogprobsOfSets,
) -> Refreshed:
    """Give the engines the weights after `update` updates, and compare with the trainer's logprobs.

    Engines that have just started are tried first. Raises RunStopped if the engines' logprobs are
    others, and as `pin_policy` does.
    """
    if stage.isdecimal():
        pin_policy(run.folder, run.config, update, int(stage))
    refreshed = engines.refresh(update)
    # An evaluation may have refreshed the engines to this policy already. That counts here.
    spent, sets = {**engines.spent}, dict[str, list[Rollout]]()
    makers = {"trial": trial_rollouts, "canary": canary_rollouts}
    for part in list(makers)[engines.tried :]:
        began = time.monotonic()
        sets[part] = makers[part](run, refreshed, update, groups, stage)
        spent[part] = time.monotonic() - began
    failpoint("canary")
    began = time.monotonic()
    # In one call, as a process without a trainer loads the model for it. Each set by itself, as the
    # canary's gap must not depend on when engines started.
    for part, found in zip(sets, logprobs(update, *sets.values()), strict=True):
        gap = checked_gap(run, sets[part], found)
        spent[part] += time.monotonic() - began
        began = time.monotonic()
    engines.tried = True
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
