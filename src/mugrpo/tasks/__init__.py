"""Tasks by name."""

from __future__ import annotations

from mugrpo.config.options import NamedOptions
from mugrpo.config.tasks import ChainOptions
from mugrpo.tasks.base import Task
from mugrpo.tasks.chain import Chain


def make_task(options: NamedOptions) -> Task:
    """The task that `options` describes."""
    assert isinstance(options, ChainOptions), f"no task for {type(options).__name__}"
    return Chain(options)
