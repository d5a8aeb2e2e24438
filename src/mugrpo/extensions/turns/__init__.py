"""Rollouts with turns: what answers the model (tools, games, users), and its reward (README.md)."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from mugrpo.config.base import Code, Extension, OwnReward, PathOrName, TurnOptions


class EnvironmentReward(OwnReward):
    """The reward that the environment of a response with turns gives (extensions/turns/README.md).

    As with a function, it may be None: no reward from the environment.
    """

    in_rollout = True
    name: Literal["environment"] = "environment"


class EnvironmentOptions(TurnOptions):
    """What answers the model between its turns, in worker processes. By default, nothing does."""

    dialogue: ClassVar[str] = "mugrpo.extensions.turns.dialogue:dialogue_of"
    schemas: ClassVar[str] = "mugrpo.extensions.turns.pool:tools_of"
    name: Code | None = None
    """Where to find it, "module:name" or "path/to/file.py:name": a class with TRL's contract
    (`reset`, methods as tools, `get_reward`), or a function that is called with the messages
    (extensions/turns/README.md). "verifiers:NAME" is an environment of the package verifiers
    (extensions/turns/verifiers/README.md)."""
    python: PathOrName | None = None
    """The interpreter of another environment, in which verifiers is installed."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class, of the function beside the messages, or of an environment of
    verifiers. config.json and reports show them: name secrets in environment variables."""
    tools: tuple[Code, ...] = ()
    """Functions that the model may call, named as the environment is. Their signatures and
    docstrings are what the chat template tells the model."""
    max_turns: int = Field(16, ge=1)
    """Turns that the model has at most."""

    @property
    def given(self) -> bool:
        return self.name is not None or bool(self.tools)

    @property
    def of_verifiers(self) -> bool:
        """Return whether the environment is one of verifiers, which another interpreter runs."""
        return (self.name or "").rpartition(":")[0] == "verifiers"

    @property
    def code(self) -> list[str]:
        return [*([self.name] if self.name and not self.of_verifiers else []), *self.tools]

    @property
    def reaches(self) -> tuple[str, ...]:
        return ("python", *(["name"] if self.of_verifiers else []), "kwargs")

    def faults(self, form: str, own_reward: bool) -> Iterator[str]:
        if own_reward and self.name is None:
            yield (
                "the reward 'environment' comes from an environment; name one with environment.name"
            )
        if self.tools and form != "chat":
            yield (
                "environment.tools needs prompt.form = 'chat', as a chat template tells the model "
                "about tools"
            )
        if not self.of_verifiers:
            return
        if self.python is None:
            yield (
                f"environment.name = {self.name!r} needs environment.python, an interpreter "
                "that has verifiers installed (extensions/turns/verifiers/README.md)"
            )
        if form != "chat":
            yield f"environment.name = {self.name!r} needs prompt.form = 'chat'"
        if self.tools:
            yield (
                f"environment.tools does not go with environment.name = {self.name!r}, which "
                "has tools of its own"
            )


extension = Extension(
    rewards=(EnvironmentReward,),
    environment=EnvironmentOptions,
    commands=("mugrpo.extensions.turns.verifiers.problems:add_problems",),
)
