"""The base of every option group: typed, bounded, described once, unknown keys refused."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict


class Options(BaseModel):
    """A group of options. Subclasses declare one field an option, with one description under it.

    A field marked `json_schema_extra=HARMLESS` may change between a run's start and its resume.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


HARMLESS: JsonDict = {"harmless": True}


class NamedOptions(Options):
    """An option group that is chosen among several by its `name`."""

    name: str
