"""The task of a run, built from its options."""

from __future__ import annotations

from mugrpo.config.mixture import MixtureOptions
from mugrpo.config.options import NamedOptions
from mugrpo.config.tasks import ChainOptions, DatasetOptions, LettersOptions, ReasoningGymOptions
from mugrpo.tasks.base import Task


def make_task(options: NamedOptions) -> Task:
    """Return the task that `options` describes.

    The task reads its data when it is first asked for problems, and raises UsageError then if a row
    is not a valid problem.
    """
    if isinstance(options, MixtureOptions):
        from mugrpo.tasks.mixture import Mixture

        return Mixture({source.source: make_task(source) for source in options.sources})
    if isinstance(options, ReasoningGymOptions):
        from mugrpo.tasks.reasoning_gym import ReasoningGym

        return ReasoningGym(options)
    if isinstance(options, DatasetOptions):
        from mugrpo.tasks.dataset import Dataset  # embedded tasks do not need pyarrow

        return Dataset(options)
    if isinstance(options, LettersOptions):
        from mugrpo.tasks.letters import Letters

        return Letters(options)
    from mugrpo.tasks.chain import Chain

    assert isinstance(options, ChainOptions), f"no task for {type(options).__name__}"
    return Chain(options)
