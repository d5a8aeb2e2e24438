"""Which presets give an option another default than the one that --help shows."""

from __future__ import annotations

from functools import cache

from mugrpo.config.describe import Option, Table, shown
from mugrpo.config.load import leaves
from mugrpo.config.preset import PRESETS
from mugrpo.config.run import RunConfig


def other_defaults(option: Option, table: Table) -> str:
    """Return the other defaults of an option of `table`, with their presets, or ""."""
    others: dict[str, list[str]] = {}
    for preset in PRESETS:
        values = _defaults(preset)
        inside = table.chooser and option.name != table.chooser
        usual = option.defaults.get(values.get(table.chooser, "") if inside else "")
        value = values.get(option.name, usual)
        if option.name != "preset" and usual is not None and value not in (usual, None):
            others.setdefault(value, []).append(preset)
    return "; ".join(f"{value} with preset {', '.join(names)}" for value, names in others.items())


@cache
def _defaults(preset: str) -> dict[str, str]:
    """Return dotted name -> default as text."""
    config = RunConfig.model_validate({"preset": preset})
    return {name: shown(value) for name, value in leaves(config.model_dump())}
