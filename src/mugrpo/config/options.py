"""The base of every option group: typed, bounded, described once, unknown keys refused."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic.config import JsonDict


class Options(BaseModel):
    """A group of options. Subclasses declare one field an option, with one description under it.

    Between a run's start and its resume a field marked `json_schema_extra=HARMLESS` may change;
    one marked FIXED never, because the shards on disk rest on it; any other by force.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


HARMLESS: JsonDict = {"on_resume": "harmless"}
FIXED: JsonDict = {"on_resume": "fixed"}


def absolute(text: str) -> str:
    """`text` as an absolute path where something lies there, so that a run can be resumed from
    anywhere; any other text (a hub id, a name) as it is."""
    return os.path.abspath(text) if os.path.exists(text) else text


def tuples(value: Any) -> Any:
    """TOML's and JSON's lists as the tuples that the options are."""
    if isinstance(value, dict):
        return {name: tuples(entry) for name, entry in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value


PathOrName = Annotated[str, AfterValidator(absolute)]


class NamedOptions(Options):
    """An option group that is chosen among several by its `name`."""

    name: str
