"""A config as a TOML document: one table for each group, and comments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from mugrpo.config.describe import as_toml
from mugrpo.config.load import build_config, leaves
from mugrpo.config.options import Options
from mugrpo.config.run import RunConfig

_ALWAYS = ("preset", "model.path", "task.name")


def as_document(raw: dict[str, Any], comments: Sequence[str] = ()) -> str:
    """Return `raw` as TOML with `comments` above it. Options that are None are left out."""
    lines = [f"# {line}" for comment in comments for line in comment.splitlines()]
    lines += [""] if lines else []
    lines += [_line(name, value) for name, value in raw.items() if not isinstance(value, dict)]
    for group, table in raw.items():
        if isinstance(table, dict):
            lines += ["", f"[{group}]"]
            lines += [_line(name, value) for name, value in table.items() if value is not None]
    return "\n".join(lines).lstrip("\n") + "\n"


def published(config: RunConfig) -> str:
    """Return the TOML of `config` that others may see: preset, model, task and what differs.

    It gives the same config when it is loaded, except that options marked PRIVATE are left out and
    that those marked PLACE have no folders. Comments name both, and the options that are unset.
    """
    default = RunConfig.over_preset({"preset": config.preset})
    groups = {group: getattr(config, group) for group in RunConfig.choices()}
    needed = {group: {"name": chosen.name, **_required(chosen)} for group, chosen in groups.items()}
    model = {"path": config.model.path}
    plain = build_config({"preset": config.preset, "model": model, **needed}, "its preset")
    kept = {*_ALWAYS, *(f"{group}.{name}" for group in needed for name in _required(groups[group]))}
    kept |= {f"{group}.name" for group in needed if default[group]["name"] != groups[group].name}
    notes: list[str] = []
    before = dict(leaves(_public(plain, "", [])))
    raw: dict[str, Any] = {}
    for name, value in leaves(_public(config, "", notes)):
        if name in kept or value != before.get(name):
            *path, leaf = name.split(".")
            table = raw
            for group in path:
                table = table.setdefault(group, {})
            if value is None:
                notes.append(f"unset: --{name} none")
            else:
                table[leaf] = value
    return as_document(raw, notes)


def _public(options: Options, prefix: str, notes: list[str]) -> dict[str, Any]:
    """Return what may be published of `options`. `notes` gets a line for what is left out."""
    public: dict[str, Any] = {}
    for leaf, field in type(options).model_fields.items():
        value, extra, name = getattr(options, leaf), field.json_schema_extra, f"{prefix}{leaf}"
        mark = extra.get("published") if isinstance(extra, dict) else "as it is"
        if mark == "nothing":
            if value != field.get_default(call_default_factory=True):
                notes.append(f"left out: {name}")
        elif isinstance(value, Options):
            public[leaf] = _public(value, f"{name}.", notes)
        elif isinstance(value, tuple) and any(isinstance(entry, Options) for entry in value):
            entries = (_public(entry, f"{name}[].", notes) for entry in value)
            public[leaf] = [{k: v for k, v in one.items() if v is not None} for one in entries]
        else:
            public[leaf] = _without_folder(value) if mark == "name" else value
            if public[leaf] != value:
                notes.append(f"without its folder: {name}")
    return public


def _without_folder(value: Any) -> Any:
    """Return a place, or several of them, without their folders."""
    if isinstance(value, tuple):
        return tuple(map(_without_folder, value))
    return last_part(value) if is_absolute(value) else value


def is_absolute(text: str | None) -> bool:
    """Return whether `text` is an absolute path on some system."""
    systems = (PurePosixPath, PureWindowsPath)
    return text is not None and any(system(text).is_absolute() for system in systems)


def last_part(path: str) -> str:
    """Return the last part of an absolute path."""
    return (PurePosixPath if PurePosixPath(path).is_absolute() else PureWindowsPath)(path).name


def _required(options: Options) -> dict[str, Any]:
    fields = type(options).model_fields
    return {name: getattr(options, name) for name, field in fields.items() if field.is_required()}


def _line(name: str, value: Any) -> str:
    return f"{name} = {as_toml(value)}"
