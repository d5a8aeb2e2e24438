"""Methods by name: the parts of the update that a preset or a TOML file chooses."""

from collections.abc import Sequence
from pathlib import Path

from mugrpo.config.load import build_config, load_config
from mugrpo.config.run import METHOD, PRESETS, RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.run.opening import OpenRun

# The options that turn scored rollouts into the loss and the step of an update.
_UPDATE_PARTS = {*METHOD} - {"sampling"}


def configs_of(run: OpenRun, methods: Sequence[str]) -> dict[str, RunConfig]:
    """Return each method's name with the config of `run`, changed in the parts of the update.

    A method is a preset's name or a TOML file. "all" stands for every preset. Raises UsageError for
    an unknown method and for two methods with the same name.
    """
    if list(methods) == ["all"]:
        methods = [*PRESETS]
    names = list(dict.fromkeys(methods))
    configs = {Path(name).stem: _with_method(run, name) for name in names}
    if len(configs) < len(names):
        raise UsageError(f"{', '.join(names)}: two methods have the same name; rename a file")
    return configs


def _with_method(run: OpenRun, method: str) -> RunConfig:
    """Return the config of `run` with the parts of `method`. Raises UsageError if there is none."""
    if method.endswith(".toml"):
        source = load_config(Path(method))
    elif method in PRESETS:
        source = build_config({"preset": method}, method)
    else:
        raise UsageError(
            f"{method!r} is not a method: name presets ({', '.join(PRESETS)}), TOML files that "
            "choose parts (objective.name = 'file', objective.path = ...), or all"
        )
    parts = source.model_dump(mode="json", include=_UPDATE_PARTS)
    raw = run.config.model_dump(mode="json") | parts | {"preset": source.preset}
    raw["overlap"] = False  # everything is generated already
    return build_config(raw, method)
