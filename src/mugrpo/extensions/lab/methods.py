"""Methods by name: the parts of the update that a preset or a TOML file chooses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mugrpo.config.load import build_config, load_config
from mugrpo.config.run import PRESETS, RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.run.opening import OpenRun

# The options that turn scored rollouts into the loss and the step of an update.
_UPDATE_PARTS = {
    "advantage",
    "objective",
    "veto",
    "sequence_mask",
    "correction",
    "reference",
    "reduction",
}


def configs_of(run: OpenRun, methods: Sequence[str]) -> dict[str, RunConfig]:
    """Return each method's name with the config of `run`, changed in the parts of the update.

    A method is a preset's name or a TOML file. "all" stands for every preset; of presets with the
    same parts, only the first is taken. Raises UsageError for an unknown method and for two methods
    with the same name.
    """
    if list(methods) == ["all"]:
        return _distinct({name: _with_method(run, name) for name in PRESETS})
    names = list(dict.fromkeys(methods))
    configs = {Path(name).stem: _with_method(run, name) for name in names}
    if len(configs) < len(names):
        raise UsageError(f"{', '.join(names)}: two methods have the same name; rename a file")
    return configs


def _with_method(run: OpenRun, method: str) -> RunConfig:
    """Return the config of `run` with the parts of `method`.

    Raises UsageError if there is no such method.
    """
    if method.endswith(".toml"):
        source = load_config(Path(method))
    elif method in PRESETS:
        source = build_config({"preset": method}, method)
    else:
        raise UsageError(
            f"{method!r} is not a method: name presets ({', '.join(PRESETS)}), TOML files, or all"
        )
    raw = run.config.model_dump(mode="json") | _parts(source) | {"preset": source.preset}
    raw["overlap"] = False  # everything is generated already
    return build_config(raw, method)


def _distinct(configs: dict[str, RunConfig]) -> dict[str, RunConfig]:
    """Return the first of the configs whose parts are the same."""
    by_parts: dict[str, str] = {}
    for name, config in configs.items():
        by_parts.setdefault(json.dumps(_parts(config), sort_keys=True), name)
    return {name: configs[name] for name in by_parts.values()}


def _parts(config: RunConfig) -> dict[str, Any]:
    """Return the options of the parts of the update."""
    return config.model_dump(mode="json", include=_UPDATE_PARTS)
