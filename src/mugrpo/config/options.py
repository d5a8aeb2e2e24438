"""The base of every option group, and how a group is chosen by its name."""

from __future__ import annotations

import os
from typing import Annotated, Any, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic.config import JsonDict

LARGEST = 10**9  # of a whole number; options that size something have smaller limits
LISTED, PROCESSES = 10**7, 4096  # of what is listed in memory, and of processes and threads


class Options(BaseModel):
    """A group of options: one typed field per option, with one description under it.

    Unknown keys are refused. When a run is resumed, a field marked `json_schema_extra=HARMLESS` may
    have changed. One marked FIXED may not, because the shards on disk depend on it. Any other
    change needs --force.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _lists_as_tuples(cls, raw: Any) -> Any:
        return tuples(raw)

    @model_validator(mode="after")
    def _sizes_are_possible(self) -> Self:
        """Refuse what no machine can hold or count to, before it sizes a list or a loop."""
        for name, value in self:
            if type(value) is int and value > LARGEST and name != "seed":
                raise ValueError(f"{name} is above {LARGEST:,}, the largest number that it may be")
        return self

    @classmethod
    def choices(cls) -> dict[str, dict[str, type[NamedOptions]]]:
        """Return group -> name -> options, for the groups that are chosen by name."""
        unions = {group: choices(field.annotation) for group, field in cls.model_fields.items()}
        return {group: union for group, union in unions.items() if union}


HARMLESS: JsonDict = {"on_resume": "harmless"}
FIXED: JsonDict = {"on_resume": "fixed"}


class NamedOptions(Options):
    """An option group that is chosen among several by its `name`."""

    name: str


def choices(union: Any) -> dict[str, type[NamedOptions]]:
    """Return name -> option group for a discriminated union, or for a tuple of such a union.

    Any other annotation has no choices.
    """
    members = get_args(union)
    if get_origin(union) in (Annotated, tuple):
        return choices(members[0])
    if all(isinstance(member, type) and issubclass(member, NamedOptions) for member in members):
        return {member.model_fields["name"].default: member for member in members}
    return {}


def absolute(text: str) -> str:
    """Return `text` as an absolute path if that path exists, or unchanged (a hub id, a name).

    This lets a run be resumed from any directory.
    """
    return os.path.abspath(text) if os.path.exists(text) else text


PathOrName = Annotated[str, AfterValidator(absolute)]


def _code(text: str) -> str:
    """Return "module:name" or "file.py:name", the file as an absolute path if it exists."""
    place, _, name = text.rpartition(":")
    if not place.strip() or not name.isidentifier():
        raise ValueError('write "module:name" or "path/to/file.py:name"')
    return f"{absolute(place)}:{name}" if place.endswith(".py") else text


# What a Python file or module defines, by the place that imports it.
Code = Annotated[str, AfterValidator(_code)]


def _for_all_stages(value: Any) -> Any:
    return (value,) if isinstance(value, int | float) else value


# A number, or one for each stage. Stages beyond the list have its last number.
ByStage = Annotated[
    tuple[float, ...],
    Field(min_length=1),
    BeforeValidator(_for_all_stages, json_schema_input_type=float | tuple[float, ...]),
]


def at_stage(values: tuple[float, ...], stage: int) -> float:
    """Return the number that `values`, a ByStage, has for `stage`."""
    return values[min(stage, len(values) - 1)]


def tuples(value: Any) -> Any:
    """Return `value` with every list as a tuple: TOML and JSON have lists, options have tuples."""
    if isinstance(value, dict):
        return {name: tuples(entry) for name, entry in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value
