"""A TOML file and dotted overrides become one resolved RunConfig, or one clear sentence.

Overrides use TOML's own values (`--objective.ratio_clip [0,5]`); what is no TOML value is taken
as text, and `none` unsets. They are laid over the file's raw values before anything is derived.
An override of a group's `name` starts that group from the chosen name's defaults.
"""

from __future__ import annotations

import copy
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from mugrpo.config.options import Options, tuples
from mugrpo.config.preset import PRESETS
from mugrpo.config.registry import CHOICES
from mugrpo.config.rewards import REWARDS
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError

LISTS = {"task.rewards": REWARDS}  # options that are several tables, each chosen by its name


def load_config(file: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of `file` (None: all defaults) under `overrides`, as the command line has them.

    Raises UsageError, one line a fault, for unreadable TOML, unknown options, wrong types and
    values out of bounds.
    """
    raw = apply_overrides(read_toml(file) if file else {}, overrides)
    return build_config(raw, str(file) if file else "the command line")


def apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`raw` with the command line's overrides laid over it."""
    return lay_over(raw, list(parse_overrides(overrides)))


def lay_over(raw: dict[str, Any], pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """`raw` with (dotted name, value) pairs laid over it, choices by name first."""
    raw = copy.deepcopy(raw)
    for name, value in sorted(pairs, key=lambda pair: not pair[0].endswith(".name")):
        _set(raw, name, value)
    return raw


def build_config(raw: dict[str, Any], source: str) -> RunConfig:
    """Validate raw nested values; raises UsageError naming `source` and every fault."""
    try:
        return RunConfig.model_validate(tuples(raw))
    except ValidationError as error:
        lines = [_sentence(".".join(map(str, loc)), e) for loc, e in _flatten(error)]
        raise UsageError(f"{source}: " + "; ".join(lines)) from None


def as_override(name: str, value: Any) -> str:
    """The command line's word for it: `--name=value` with TOML's value."""
    return f"--{name}={_toml_text(value)}"


def parse_overrides(arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """(dotted name, value) for each `--a.b value` or `--a.b=value`."""
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise UsageError(f"{flag!r} is no option: overrides are written --group.option value")
        name, equals, text = flag[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"--{name} has no value: write --{name} value")
            text = rest.pop(0)
        yield name.replace("-", "_"), _toml_value(text)


def describe_options(
    options: type[Options] = RunConfig,
) -> Iterator[tuple[str, str, str, str]]:
    """(dotted name, type and bounds, default, meaning) of every option, for --help."""
    for name, field in _fields(options):
        meaning = " ".join((field.description or "").split())
        yield name, _type_text(field), _default_text(field), meaning


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(dotted name, old, new) where two resolved configs differ; None for "not there"."""
    flat_old, flat_new = dict(leaves(old)), dict(leaves(new))
    names = sorted(flat_old.keys() | flat_new.keys())
    pairs = [(name, flat_old.get(name), flat_new.get(name)) for name in names]
    return [(name, a, b) for name, a, b in pairs if a != b]


def on_resume(name: str) -> str:
    """What a change of option `name` is when a run is resumed: "harmless", "forced" or "fixed"."""
    fields = dict(_fields(RunConfig))
    extra = fields[name].json_schema_extra if name in fields else None
    return str(extra["on_resume"]) if isinstance(extra, dict) else "forced"


def read_toml(file: Path) -> dict[str, Any]:
    """The raw values of `file`; raises UsageError where it cannot be read."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{file}: there is no such config file, and no run's directory") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: byte {error.start} is not UTF-8; save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, OSError) as error:
        raise UsageError(f"{file}: {error}") from None


def _toml_value(text: str) -> Any:
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _toml_text(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_toml_text(entry)}" for key, entry in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_text, value))}]"
    return "none" if value is None else json.dumps(value)


def _set(raw: dict[str, Any], name: str, value: Any) -> None:
    *groups, leaf = name.split(".")
    table = raw
    for group in groups:
        table = table.setdefault(group, {})
        if not isinstance(table, dict):
            raise UsageError(f"--{name}: {group} is an option, not a group of options")
    chooses = leaf == "name" and groups and groups[0] in CHOICES
    if chooses and table.get("name", _name_beneath(raw, groups[0])) != value:
        table.clear()
    table[leaf] = value


def _name_beneath(raw: dict[str, Any], group: str) -> Any:
    """A group's name where `raw` does not set it: its preset's, or the default."""
    fields = RunConfig.model_fields
    preset = PRESETS.get(str(raw.get("preset", fields["preset"].default)), {})
    return preset.get(group, {}).get("name", fields[group].default.name)


def _fields(options: type[Options], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every option below `options` under its dotted name, those of all choices included."""
    for name, field in options.model_fields.items():
        groups = list(CHOICES[name].values()) if name in CHOICES else [field.annotation]
        for group in groups:
            if isinstance(group, type) and issubclass(group, Options):
                yield from _fields(group, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", field
        for group in LISTS.get(f"{prefix}{name}", {}).values():
            yield from _fields(group, f"{prefix}{name}[].")


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every value in nested tables."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _flatten(
    error: ValidationError, prefix: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Pydantic's errors with whole locations, those of groups chosen by name included."""
    for e in error.errors():
        inner = e.get("ctx", {}).get("error")
        loc = (*prefix, *e["loc"])
        if isinstance(inner, ValidationError):
            yield from _flatten(inner, loc)
        else:
            yield loc, e


def _sentence(name: str, error: Any) -> str:
    if error["type"] == "extra_forbidden":
        known = dict.fromkeys(known for known, _ in _fields(RunConfig))
        group, _, leaf = name.rpartition(".")
        if name in known:
            owners = [n for n, o in CHOICES[group].items() if leaf in o.model_fields]
            return f"{name} is an option where {group}.name = {' or '.join(map(repr, owners))}"
        near = _near(name, list(known))
        hint = f"did you mean {near}?" if near else "`mugrpo train --help` lists all options"
        return f"there is no option {name}; {hint}"
    if error["type"] == "missing":
        return f"{name} must be given"
    message = str(error["msg"]).removeprefix("Value error, ")
    if not name:  # of the config as a whole
        return message
    if message.startswith("no such name"):
        return f"{name}.name: {message}"
    return f"{name} = {error['input']!r}: {message[0].lower()}{message[1:]}"


def _near(name: str, known: list[str]) -> str | None:
    """The option or group that `name` may be a slip for: by the whole, the group, the last part."""
    group, leaf = name.partition(".")[0], name.rpartition(".")[2]
    groups = {option.partition(".")[0] for option in known}
    whole = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    by_group = difflib.get_close_matches(group, groups - {group}, n=1, cutoff=0.7)
    leaves = [k for k in known if difflib.get_close_matches(leaf, [k.rpartition(".")[2]], 1, 0.7)]
    return next(iter([*whole, *by_group, *leaves]), None)


def _type_text(field: FieldInfo) -> str:
    signs = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<"}
    bounds = [
        f"{sign} {getattr(bound, kind.__name__.lower())}"
        for bound in field.metadata
        for kind, sign in signs.items()
        if isinstance(bound, kind)
    ]
    return " ".join([_annotation_text(field.annotation), *bounds])


def _annotation_text(annotation: Any) -> str:
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return _annotation_text(arguments[0])
    if typing.get_origin(annotation) is typing.Literal:
        return "|".join(map(str, arguments))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return "|".join("none" if a is type(None) else _annotation_text(a) for a in arguments)
    if typing.get_origin(annotation) is tuple and arguments[-1] is Ellipsis:
        return "names or tables"
    if typing.get_origin(annotation) is tuple:
        return f"[{', '.join(map(_annotation_text, arguments))}]"
    return getattr(annotation, "__name__", str(annotation))


def _default_text(field: FieldInfo) -> str:
    default = field.default
    if field.is_required():
        return "to be given"
    if default is None:
        return "none"
    if isinstance(default, tuple):
        return str([getattr(entry, "name", entry) for entry in default])
    return str(default)
