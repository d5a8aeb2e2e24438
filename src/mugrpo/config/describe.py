"""The options of a run as users read them: owner, type and bounds, default, meaning."""

import inspect
import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mugrpo.config.base import Options, members_of
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import SourceOptions


@dataclass(frozen=True)
class Option:
    """An option; choices that have it with the same type and meaning share one entry."""

    name: str  # dotted; "task.rewards[].weight" in a table of the list task.rewards
    kind: str  # type and bounds
    meaning: str
    on_resume: str  # whether a change is "harmless", "forced" or "fixed"
    defaults: dict[str, str]  # choice that has the option ("" outside a choice) -> its default

    @property
    def default(self) -> str:
        """Return the default, or each default with its choices if the choices differ."""
        owners: dict[str, list[str]] = {}
        for owner, default in self.defaults.items():
            owners.setdefault(default, []).append(owner)
        if len(owners) == 1:
            return next(iter(owners))
        return "; ".join(f"{default} for {', '.join(names)}" for default, names in owners.items())

    @property
    def head(self) -> str:
        """Return name, type, bounds and default in one line."""
        default = self.default if self.default == "required" else f"default {self.default}"
        return f"{self.name}  {self.kind}  ({default})"


@dataclass(frozen=True)
class Table:
    """A table of options, or alternative tables that are chosen by name."""

    name: str  # dotted; "" for the run, "task.rewards[]" for a table of the list task.rewards
    meaning: str
    chooser: str  # the option that chooses among the members, such as "engine.name"; "" if none
    members: Mapping[str, type[Options]]  # choice ("" if there is none) -> its options
    options: list[Option]


def tables(
    members: Mapping[str, type[Options]],
    name: str = "",
    meaning: str = "",
    chooser: str = "",
    values: Options | None = None,
) -> Iterator[Table]:
    """Yield the table of `members`, then the tables inside it.

    The defaults of the member that `values` is an instance of are the values there; those of other
    members are their own.
    """
    merged: dict[tuple[str, str, str, str], dict[str, str]] = {}
    inside: list[Iterator[Table]] = []
    groups: dict[tuple[str, type[Options]], dict[str, type[Options]]] = {}
    for owner, options in members.items():
        for leaf, field in options.model_fields.items():
            place, annotation = f"{name}.{leaf}".lstrip("."), field.annotation
            about, named = " ".join((field.description or "").split()), members_of(annotation)
            own = field.get_default(call_default_factory=True)
            default = getattr(values, leaf) if type(values) is options else own
            if inspect.isclass(annotation) and issubclass(annotation, Options):
                about = inspect.getdoc(annotation) or ""
                owners = groups.setdefault((place, annotation), {})
                if not owners:  # the table is read below, once all its owners are known
                    inside.append(tables(owners, place, about, chooser, default))
                owners[owner] = annotation
            elif field.discriminator:
                inside.append(tables(named, place, about, f"{place}.name", default))
            elif place == chooser:
                chosen = getattr(values, "name", "required")
                merged[place, "name", about, _on_resume(field)] = {"": chosen}
            else:
                key = (place, _kind(field), about, _on_resume(field))
                if key not in merged:
                    inside += _of_list(place, annotation)
                merged.setdefault(key, {})[owner] = shown(default)
    yield Table(name, meaning, chooser, members, [Option(*key, merged[key]) for key in merged])
    for inner in inside:
        yield from inner


def _of_list(place: str, annotation: Any) -> list[Iterator[Table]]:
    """Return the tables of the list at `place`, [] if it is not a list of tables."""
    about = f"A table of the list {place}."
    named = members_of(annotation)
    if named and all(issubclass(one, SourceOptions) for one in named.values()):
        about = f"A table of the list {place}: the options of a task, and these."
        return [tables({"": SourceOptions}, f"{place}[]", about)]
    if named:
        return [tables(named, f"{place}[]", about, f"{place}[].name")]
    entry = _entry(annotation)
    return [tables({"": entry}, f"{place}[]", about)] if entry else []


def describe(options: type[Options] = RunConfig) -> list[Option]:
    """Return every option below `options`."""
    return [option for table in tables({"": options}) for option in table.options]


def as_toml(value: Any) -> str:
    """Return `value` in TOML notation. None becomes `none`, which unsets an option in overrides."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {as_toml(entry)}" for key, entry in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if value is None:
        return "none"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which TOML refuses


def _entry(annotation: Any) -> type[Options] | None:
    """Return the options of a list's tables, or None if it is no list of tables."""
    kind = typing.get_args(annotation)[0] if typing.get_origin(annotation) is tuple else None
    return kind if inspect.isclass(kind) and issubclass(kind, Options) else None


def _on_resume(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    return str(extra.get("on_resume", "forced")) if isinstance(extra, dict) else "forced"


def _kind(field: FieldInfo) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [
        f"{signs[key]} {getattr(bound, key)}"
        for bound in field.metadata
        for key in signs
        if hasattr(bound, key)
    ]
    return f"{_type(field.annotation)} {', '.join(bounds)}".rstrip()


def _type(annotation: Any) -> str:
    kind, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if kind is typing.Annotated:
        return _type(arguments[0])
    if kind is typing.Literal:
        return "|".join(map(str, arguments))
    if kind in (typing.Union, types.UnionType):
        return "|".join("none" if a is type(None) else _type(a) for a in arguments)
    if kind is tuple and members_of(annotation):
        return "names or tables"
    if _entry(annotation):
        return "tables"
    if kind is tuple:
        return f"[{', '.join('...' if a is Ellipsis else _type(a) for a in arguments)}]"
    return "table" if kind is dict else annotation.__name__


def shown(value: Any) -> str:
    """Return a default as help shows it."""
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, tuple):
        value = [getattr(entry, "name", entry) for entry in value]
    return value if isinstance(value, str) else as_toml(value)
