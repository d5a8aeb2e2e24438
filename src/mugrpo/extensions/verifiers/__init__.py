"""Environments of the package verifiers, in an interpreter of their own (README.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mugrpo.config.base import EnvironmentKind, Extension

if TYPE_CHECKING:
    from mugrpo.config.rewards import EnvironmentOptions


class VerifiersKind(EnvironmentKind):
    """`environment.name = "verifiers:NAME"`."""

    factory = "mugrpo.extensions.verifiers.pool:VerifiersEnvironments"

    def faults(self, options: EnvironmentOptions, form: str) -> Iterator[str]:
        if options.python is None:
            yield (
                f"environment.name = {options.name!r} needs environment.python, an interpreter "
                "that has verifiers installed (extensions/verifiers/README.md)"
            )
        if form != "chat":
            yield f"environment.name = {options.name!r} needs prompt.form = 'chat'"
        if options.tools:
            yield (
                f"environment.tools does not go with environment.name = {options.name!r}, which "
                "has tools of its own"
            )


extension = Extension(
    environments={"verifiers": VerifiersKind()},
    commands=("mugrpo.extensions.verifiers.problems:add_problems",),
)
