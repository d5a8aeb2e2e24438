"""Values that are nobody else's: hidden in whatever is written or printed, kept beside the run.

Dumps and prints of a private option have only what may be shown of it. Only `value` and
`Options.revealed` give the value itself.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import GetCoreSchemaHandler, SerializationInfo
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
