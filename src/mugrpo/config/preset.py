"""Methods by name: what each sets beneath a config file. One TOML file a method."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

from mugrpo.config.options import tuples

_FOLDER = Path(__file__).parent / "presets"

PRESETS: dict[str, dict[str, Any]] = {
    file.stem: tuples(tomllib.loads(file.read_text())) for file in sorted(_FOLDER.glob("*.toml"))
}


def described(name: str) -> str:
    """The first line of a preset's file."""
    return (_FOLDER / f"{name}.toml").read_text().split("\n")[0].lstrip("# ")


def beneath(preset: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    """`raw` with what `preset` sets and it does not; a group of another name is raw's alone."""
    merged = copy.deepcopy(raw)
    for name, value in preset.items():
        mine = merged.get(name)
        if name not in merged:
            merged[name] = copy.deepcopy(value)
        elif (
            isinstance(value, dict)
            and isinstance(mine, dict)
            and mine.get("name", value.get("name")) == value.get("name")
        ):
            merged[name] = {**value, **mine}
    return merged
