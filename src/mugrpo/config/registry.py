"""Option groups chosen by name: `[task] name = "chain"` selects ChainOptions, and so on."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from mugrpo.config import objectives
from mugrpo.config.engines import EngineOptions, HFOptions
from mugrpo.config.objectives.base import ObjectiveOptions
from mugrpo.config.options import NamedOptions
from mugrpo.config.tasks import ChainOptions, DatasetOptions


def _objectives() -> dict[str, type[NamedOptions]]:
    for module in pkgutil.iter_modules(objectives.__path__, objectives.__name__ + "."):
        importlib.import_module(module.name)
    return _by_name(*_below(ObjectiveOptions))


def _below(group: type[NamedOptions]) -> list[type[NamedOptions]]:
    """Every subclass, those of subclasses too: a variant may build on another's options."""
    return [c for child in group.__subclasses__() for c in (child, *_below(child))]


def _by_name(*options: type[NamedOptions]) -> dict[str, type[NamedOptions]]:
    return {group.model_fields["name"].default: group for group in options}


TASKS = _by_name(ChainOptions, DatasetOptions)
ENGINES = _by_name(HFOptions)
OBJECTIVES = _objectives()


def _chosen_from(groups: dict[str, type[NamedOptions]], default: str) -> BeforeValidator:
    def choose(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        name = value.get("name", default)
        if not isinstance(name, str) or name not in groups:
            raise ValueError(f"no such name {name!r}: choose among {', '.join(sorted(groups))}")
        return groups[name].model_validate(value)

    return BeforeValidator(choose)


TaskChoice = Annotated[SerializeAsAny[NamedOptions], _chosen_from(TASKS, "chain")]
EngineChoice = Annotated[SerializeAsAny[EngineOptions], _chosen_from(ENGINES, "hf")]
ObjectiveChoice = Annotated[SerializeAsAny[ObjectiveOptions], _chosen_from(OBJECTIVES, "mu_grpo")]
