"""Whether the engine samples from the policy that the trainer has."""

from __future__ import annotations

from collections.abc import Sequence

from mugrpo.disk.errors import RunStopped
from mugrpo.model.memory import out_of_memory_explained
from mugrpo.rollouts.sampler import Sampler
from mugrpo.run.run import Run


def canary(
    run: Run, samplers: Sequence[Sampler], groups: Sequence[tuple[int, int]]
) -> float | None:
    """Compare the engines' logprobs of a few responses each with the trainer's.

    Returns the difference, see `Trainer.logprob_gap`. Raises RunStopped above the tolerance: then
    the engine's weights or sampling are not the policy's, and all importance ratios would be wrong.
    """
    options = run.config.engine
    if not options.canary_responses:
        return None
    problems = [(run.problems[i], k) for i, k in groups[: options.canary_responses]]
    with out_of_memory_explained("generation", options.way_out_of_memory):
        rollouts = [
            rollout
            for sampler in samplers
            for rollout in sampler.sample(problems, lambda _: run.stop.check(), samples=1)
        ]
    gap = run.trainer.logprob_gap(rollouts)
    tolerance = run.config.canary_tolerance
    differ = f"engine and trainer differ by {gap:.3g} in logprob"
    if run.config.model.precision != "fp32":
        differ += " on average"
    if gap > run.config.engine.canary_warning * tolerance:
        run.progress.say(
            f"canary: {differ}; nothing is wrong yet, but above {tolerance:g} the run stops"
        )
    if not gap <= tolerance:
        raise RunStopped(
            f"canary: {differ} (tolerance {tolerance:g}); its weights or sampling are not the "
            "policy's. Mend the engine, or raise --engine.canary_tolerance (with --force)"
        )
    return gap
