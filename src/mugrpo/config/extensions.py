"""The registry of extensions: the core looks them up here and never imports one by name.

A package of your own adds to mugrpo by an entry point (examples/extension):

    [project.entry-points."mugrpo.extensions"]
    mine = "my_package:extension"
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Annotated, Any, Union

from pydantic import Field

from mugrpo.config.base import (
    BackendOptions,
    EnvironmentKind,
    ObjectiveOptions,
    RewardOption,
    TaskOptions,
    imported,
)
from mugrpo.disk.errors import UsageError

_GROUP = "mugrpo.extensions"


@dataclass(frozen=True)
class Extension:
    """What an extension adds. Options are classes; a "module:name" is imported when it is used."""

    rewards: tuple[type[RewardOption], ...] = ()
    objectives: tuple[type[ObjectiveOptions], ...] = ()
    tasks: tuple[type[TaskOptions], ...] = ()
    backends: tuple[type[BackendOptions], ...] = ()
    environments: Mapping[str, EnvironmentKind] = field(default_factory=dict)
    measures: str = ""  # what measures evaluation.suites (`stages.evaluate.Measures`)
    sections: tuple[str, ...] = ()  # of the report: functions of runs -> (title, figures)
    commands: tuple[str, ...] = ()  # functions of `arguments.Commands`, in light modules
    checks: Mapping[str, str] = field(default_factory=dict)  # subject -> a check of `doctor`


@cache
def installed() -> dict[str, Extension]:
    """Return name -> extension: those in mugrpo/extensions, then those of other packages.

    Raises UsageError if another package's entry point cannot be imported.
    """
    found = {}
    for module in pkgutil.iter_modules(import_module(_GROUP).__path__ if find_spec(_GROUP) else ()):
        adds = module.ispkg  # a lone module is imported by its users
        found[module.name] = imported(f"{_GROUP}.{module.name}:extension") if adds else Extension()
    for entry in entry_points(group=_GROUP):
        try:
            found[entry.name] = entry.load()
        except Exception as error:
            raise UsageError(
                f"the extension {entry.name} ({entry.value}) cannot be imported "
                f"({type(error).__name__}: {error}); fix it, or uninstall its package"
            ) from None
    return found


def one_of(kind: str, *own: type[Any]) -> Any:
    """Return the union of the core's options and those that extensions add, chosen by name.

    `kind` is a field of `Extension`. Raises UsageError if two have the same name.
    """
    added = [options for one in installed().values() for options in getattr(one, kind)]
    names = [options.model_fields["name"].default for options in (*own, *added)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"two of the installed {kind} are called {min(twice)!r}; uninstall one")
    if len(names) == 1:
        return own[0]
    return Annotated[Union[(*own, *added)], Field(discriminator="name")]


def environment_kinds() -> dict[str, EnvironmentKind]:
    """Return kind -> environments of other packages, which extensions run."""
    return {kind: one for each in installed().values() for kind, one in each.environments.items()}
