"""The canary: the engines have the policy's weights if their logprobs are the trainer's.

A refresh gives engines new weights, and pays for a few tokens of one group. What depends on lengths
is the engine's own, so it is tried once, when the engines have started. An engine that samples from
the model that trains is given no weights: there a stage's first update compares the logprobs that
it computes anyway, and evaluations alone have a canary.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugrpo.config.engines import CANARY_RESPONSES, TRIAL_GROUPS
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
from mugrpo.run.stage import Stage

# The largest gap that rounding explains. In fp32 it is a single token's. In bf16, which keeps 8
# bits of a logit, rounding moves single logprobs by tenths, so it is the mean over tokens.
CANARY_TOLERANCE: Mapping[Precision, float] = {"fp32": 1e-3, "bf16": 0.1}
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
    logprobs: LogprobsAt,
) -> Refreshed:
    """Give the engines the weights after `update` updates, and compare with the trainer's logprobs.

    Of an engine that samples from the model that trains, `check_first_update` compares a stage's.
    Raises RunStopped if the engines' logprobs are others, and as `pin_policy` does.
    """
    if trains := stage.isdecimal():  # otherwise it is an evaluation
        pin_policy(run.folder, run.config, update, int(stage))
    refreshed = engines.refresh(update)
    # An evaluation may have refreshed the engines to this policy already. That counts here.
    spent, gap, began = {**engines.spent}, None, time.monotonic()
    part, sampled = ("canary", canary_rollouts) if engines.tried else ("trial", trial_rollouts)
    failpoint("canary")
    if not (engines.tried and trains and run.config.engine_shares_model):
        precision = precision_of(run.config.model)
        rollouts = sampled(run, refreshed, update, groups, stage)
        gap = logprob_gap(logprobs(update, rollouts), rollouts, precision)
        check_gap(gap, precision, run.progress.say)
        spent[part] = time.monotonic() - began
    engines.tried = True
    return Refreshed(refreshed, engines.dialogues(), gap, spent)


def check_first_update(run: OpenRun, stage: Stage, line: Mapping[str, Any]) -> None:
    """Compare the logprobs of a stage's first update, which `line` is of, if no canary does.

    Rollouts of another program are not compared: they may be another policy's. Raises RunStopped if
    engine and trainer differ.
    """
    rollouts, precision = stage.shards("rollouts"), precision_of(run.config.model)
    gap = line["logprob_gap/max" if precision == "fp32" else "logprob_gap/mean"]
    ours = all("policy_step" in entry for entry in rollouts.entries())
    if run.config.engine_shares_model and ours and not line["skipped"] and gap is not None:
        then = f"; then move {rollouts.folder} away, to generate the stage again"
        check_gap(gap, precision, run.progress.say, then)


def check_gap(gap: float, precision: Precision, say: Callable[[str], None], then: str = "") -> None:
    """Say so if the gap between engine and trainer is above half of the tolerance.

    Raises RunStopped if it is above the tolerance, or NaN: importance ratios would be wrong.
    """
    difference = f"canary: engine and trainer differ by {gap:.3g} in logprob"
    if precision != "fp32":
        difference += " on average"
    tolerance = CANARY_TOLERANCE[precision]
    if not gap <= tolerance:
        raise RunStopped(
            f"{difference} (tolerance {tolerance:g}); the engine's weights or sampling do not "
            f"match the policy; fix it, or use another engine.name{then}"
        )
    if gap > _WARNING * tolerance:
        say(f"{difference}; nothing is wrong yet, but above {tolerance:g} the run stops")


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
