"""The options of the environment that answers the model between its turns."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from mugrpo.config.base import EnvironmentKind
from mugrpo.config.cores import cores
from mugrpo.config.extensions import environment_kinds
from mugrpo.config.options import HARMLESS, PROCESSES, Code, Options, PathOrName
from mugrpo.config.private import PrivateTable


class EnvironmentOptions(Options):
    """What answers the model between its turns, in worker processes. By default, nothing does."""

    name: Code | None = None
    """Where to find it, "module:name" or "path/to/file.py:name": a class with TRL's contract
    (`reset`, methods as tools, `get_reward`), or a function that is called with the messages
    (docs/environments.md). "KIND:NAME" is an environment of another package, such as
    "verifiers:NAME" (docs/verifiers.md)."""
    python: PathOrName | None = None
    """The interpreter of another environment, in which the package of "KIND:NAME" is installed."""
    kwargs: PrivateTable = PrivateTable({})
    """Keyword arguments of the class, of the function beside the messages, or of another package's
    environment. Text in them is hidden in whatever is written or printed."""
    tools: tuple[Code, ...] = ()
    """Functions that the model may call, named as the environment is. Their signatures and
    docstrings are what the chat template tells the model."""
    max_turns: int = Field(16, ge=1)
    """Turns that the model has at most."""
    timeout: float = Field(60.0, gt=0)
    """Seconds that an environment may take for an answer, whatever it waits for. Then its worker
    process is killed."""
    workers: int = Field(0, ge=0, le=PROCESSES, json_schema_extra=HARMLESS)
    """Worker processes, each with the environments of many rollouts. 0 starts one per core."""
    memory_mb: int = Field(2048, ge=0)
    """Memory in MiB that a worker process may take with all that it starts. 0 sets no limit."""

    @property
    def given(self) -> bool:
        """Return whether responses have turns."""
        return self.name is not None or bool(self.tools)

    @property
    def kind(self) -> EnvironmentKind | None:
        """Return the kind of an environment of another package, or None if it is the user's."""
        return environment_kinds().get((self.name or "").rpartition(":")[0])

    @property
    def code(self) -> list[str]:
        """Return all code that the options name and this interpreter imports."""
        here = self.name is not None and self.kind is None
        return [*([self.name] if here and self.name else []), *self.tools]

    @property
    def processes(self) -> int:
        return self.workers or len(cores())

    def faults(self, form: str, own_reward: bool) -> Iterator[str]:
        """Yield a message for each combination that does not work, with the way out.

        `form` is prompt.form, and `own_reward` whether the environment's own reward is asked for.
        """
        if own_reward and self.name is None:
            yield (
                "the reward environment is the one that an environment gives; name one with "
                "environment.name"
            )
        if self.kwargs and self.name is None:
            yield "environment.kwargs has no effect without environment.name, which takes them"
        if self.tools and form != "chat":
            yield (
                "environment.tools needs prompt.form = 'chat', as a chat template tells the model "
                "about tools"
            )
        if self.kind is not None:
            yield from self.kind.faults(self, form)
        elif self.python is not None:
            yield "environment.python has no effect: environments of your own run in mugrpo's"
        names = [tool.rpartition(":")[2] for tool in self.tools]
        if twice := {name for name in names if names.count(name) > 1}:
            yield f"environment.tools has {min(twice)} twice; a model calls tools by their names"
        if not self.given and self.max_turns != type(self).model_fields["max_turns"].default:
            yield (
                "environment.max_turns has no effect without environment.name or "
                "environment.tools; name one of them"
            )
