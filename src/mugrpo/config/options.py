"""The base of every option group, how a group is chosen by its name, and values that are hidden."""

from __future__ import annotations

import json
import os
import re
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SerializationInfo,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import CoreSchema, core_schema

from mugrpo.disk.errors import UsageError

HIDDEN = "(left out)"
REVEAL = {"private": "revealed"}  # the context of a dump with the values themselves
_SECRETS = re.compile(  # shapes of access tokens, and the users and queries of URLs
    r"\b(?:hf_\w{20,}|api_(?:org_)?[^\W_]{20,}|sk-[\w-]{20,}|[rs]k_(?:live|test)_\w{16,}|"
    r"gh[oprsu]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|A[KS]IA\w{16}|AIza[\w-]{35}|"
    r"xox[abp]-[\w-]{10,}|eyJ[\w-]{8,}\.eyJ[\w.-]+)|"
    # `Path` joins the two slashes of a URL
    r"(?<=:/)(?P<slash>/?)(?:[^/\s\"':]+:[^\s\"']+|[^/\s\"']+)@|"
    r"(?<=\?)(?<=[^\s\"']\?)[^\s\"'=]+=[^\s\"'#]+"
)

Value = TypeVar("Value")


def concealed(text: str) -> str:
    """Return `text` without access tokens, and without the users and queries of its URLs."""

    def hidden(found: re.Match[str]) -> str:
        slash = found["slash"]
        return HIDDEN if slash is None else f"{slash}{HIDDEN}@"

    return _SECRETS.sub(hidden, text)


class Private(Generic[Value]):
    """A value of an option that shows itself only in part."""

    inner: ClassVar[Any]

    def __init__(self, value: Value) -> None:
        self._value = value

    @property
    def shown(self) -> Any:
        """Return what others may see, in a form that the option takes."""
        raise NotImplementedError

    @property
    def value(self) -> Value:
        """Return the value. Raises UsageError if it has stayed elsewhere."""
        if HIDDEN in json.dumps(self._value, default=str):
            raise UsageError(
                f"{self.shown!r} is private, and a copy of a run comes without it; name the option "
                "again on the command line"
            )
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._value == other._value

    def __hash__(self) -> int:
        return hash(json.dumps(self._value, sort_keys=True, default=str))

    def __str__(self) -> str:
        return str(self.shown)

    def __repr__(self) -> str:
        return repr(self.shown)

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def made(raw: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> Private[Value]:
            return raw if isinstance(raw, cls) else cls(validate(raw))

        def dumped(private: Private[Value], info: SerializationInfo) -> Any:
            return private._value if info.context == REVEAL else private.shown

        return core_schema.no_info_wrap_validator_function(
            made,
            handler.generate_schema(cls.inner),
            serialization=core_schema.plain_serializer_function_ser_schema(dumped, info_arg=True),
        )


class PrivateText(Private[str]):
    """A text that is shown without access tokens, and without users and queries of URLs."""

    inner = str

    @property
    def shown(self) -> str:
        return concealed(self._value)


class PrivateTable(Private[dict[str, Any]]):
    """A table that shows its names, numbers and truth values, and hides its text."""

    inner = dict[str, Any]

    @property
    def shown(self) -> dict[str, Any]:
        return {name: _shown(entry) for name, entry in self._value.items()}


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shown(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(entry) for entry in value]
    return value if value is None or isinstance(value, bool | int | float) else HIDDEN


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

    def revealed(self, mode: Literal["json", "python"] = "json") -> dict[str, Any]:
        """Return the options with private values, which nothing may write or print."""
        return self.model_dump(mode=mode, context=REVEAL)

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
