"""Presets: methods by name, with the options that a config leaves unset. One TOML file each."""

from __future__ import annotations

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

from mugrpo.config.options import tuples

_FOLDER = Path(__file__).parent / "presets"

PRESETS: dict[str, dict[str, Any]] = {
    file.stem: tuples(tomllib.loads(file.read_text())) for file in sorted(_FOLDER.glob("*.toml"))
}


def described(name: str) -> str:
    """Return the first line of a preset's file."""
    return _text(name).split("\n")[0].lstrip("# ")


def in_four_stages(name: str) -> float | None:
    """Return the accuracy that a preset's file states for four stages of studies/presets.toml."""
    stated = re.search(r"^# In four stages: (\d\.\d+)$", _text(name), re.MULTILINE)
    return float(stated[1]) if stated else None


def beneath(preset: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    """Return `raw` laid over `preset`, option by option.

    A group that `raw` gives another name takes nothing from `preset`.
    """
    merged = copy.deepcopy({**preset, **raw})
    for name in preset.keys() & raw.keys():
        below, above = preset[name], raw[name]
        tables = isinstance(below, dict) and isinstance(above, dict)
        if tables and above.get("name", below.get("name")) == below.get("name"):
            merged[name] = copy.deepcopy({**below, **above})
    return merged


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.toml").read_text()
