"""Make one resolved RunConfig from a TOML file and dotted overrides, or say what is wrong.

Overrides use TOML's values (`--objective.ratio_clip [0,5]`). Text that is not a TOML value is a
string, and `none` unsets an option. Overrides replace the file's raw values before anything is
derived. An override of a group's `name` starts that group from the defaults of that name. Of an
option that does not exist, the error says which one was probably meant.
"""

import copy
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mugrpo.config.base import Options, members_of
from mugrpo.config.describe import as_toml, describe
from mugrpo.config.rewards import Reward
from mugrpo.config.run import METHOD, PRESETS, RunConfig
from mugrpo.config.tasks import Source
from mugrpo.disk.errors import UsageError, absent

OptionGroup = TypeVar("OptionGroup", bound=Options)

# Tables of a list that are chosen by name.
_IN_LISTS = [(name,) for name in (*members_of(Reward), *members_of(Source))]


def load_config(file: Path | str | None = None, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the config of `file` (None: all defaults) under the command line's `overrides`.

    Raises UsageError, which names the faults, for unreadable TOML, unknown options, wrong types
    and values out of bounds.
    """
    raw = apply_overrides(read_toml(Path(file)) if file else {}, overrides)
    return build_config(raw, " ".join([str(file), *overrides]) if file else "on the command line")


def require_places(raw: dict[str, Any], folder: Path) -> None:
    """Raise UsageError if a relative path in `raw` is not here, but in the config's `folder`."""
    for name, value in leaves(raw):
        for text in value if isinstance(value, list) else [value]:
            place = text.get("function") if isinstance(text, dict) else text
            place = re.sub(r"(?<=\.py):\w+$", "", place) if isinstance(place, str) else ""
            if Path(place).suffix and not os.path.exists(place) and (folder / place).is_file():
                raise UsageError(
                    f"{name}: {absent(place)}, where paths are looked up, but the config's folder "
                    f"has one; go there, or name {(folder / place).resolve()}"
                )


def apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return `raw` with the command line's overrides laid over it."""
    return lay_over(raw, list(parse_overrides(overrides)))


def lay_over(raw: dict[str, Any], pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return `raw` with (dotted name, value) pairs laid over it, names of groups first.

    Raises UsageError if a preset among them would lose to what `raw` says of the method.
    """
    raw = copy.deepcopy(raw)
    _require_preset_wins(raw, dict(pairs))
    for name, value in sorted(pairs, key=lambda pair: not pair[0].endswith(".name")):
        _set(raw, name, value)
    return raw


def build_config(raw: dict[str, Any], source: str) -> RunConfig:
    """Return the config of raw nested values. Raises UsageError with `source` and the faults."""
    return validated(RunConfig, raw, source)


def validated(group: type[OptionGroup], raw: dict[str, Any], source: str) -> OptionGroup:
    """Return the options of `group` with raw nested values. Raises UsageError as build_config."""
    try:
        return group.model_validate(raw)
    except ValidationError as error:
        found = error.errors()
        places = [fault["loc"] for fault in found]
        sentences = [
            _sentence(fault, group)
            for fault in found  # a fault may only follow from one inside
            if not any(p != (at := fault["loc"]) and p[: len(at)] == at for p in places)
        ]
        raise UsageError(f"{source}: {'; '.join(sentences)}") from None


def as_override(name: str, value: Any) -> str:
    """Return the command line's word for an option: `--name=value` with TOML's value."""
    return f"--{name}={as_toml(value)}"


def parse_overrides(arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) for each `--a.b value` or `--a.b=value`.

    Raises UsageError if a word is not an option, or an option has no value.
    """
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise UsageError(
                f"{flag!r} is not an option: overrides are written --group.option value"
            )
        name, equals, text = flag[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"--{name} has no value: write --{name} value")
            text = rest.pop(0)
        yield name.replace("-", "_"), _value(text)


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (dotted name, old, new) for each difference between two resolved configs.

    A value that is missing is None.
    """
    flat_old, flat_new = dict(leaves(old)), dict(leaves(new))
    names = sorted(flat_old.keys() | flat_new.keys())
    pairs = [(name, flat_old.get(name), flat_new.get(name)) for name in names]
    return [(name, a, b) for name, a, b in pairs if a != b]


def with_newer_options(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a stored config with today's options.

    An option that it lacks was added later, and has the value of its preset. If one of its options
    no longer exists, it stays as it is.
    """
    with suppress(UsageError):
        stored = build_config(stored, "a stored config").model_dump(mode="json")
    return stored


def on_resume(name: str) -> str:
    """Return whether a changed option is "harmless", "forced" or "fixed" when a run is resumed."""
    return {option.name: option.on_resume for option in describe()}.get(name, "forced")


def read_toml(file: Path) -> dict[str, Any]:
    """Return the raw values of `file`. Raises UsageError if it cannot be read."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        near = get_close_matches(file.name, [other.name for other in file.parent.glob("*")], 1)
        hint = f"did you mean {file.with_name(near[0])}?" if near else "name one before any options"
        raise UsageError(f"{file}: there is no such config file or run directory; {hint}") from None
    except IsADirectoryError:
        raise UsageError(f"{file} is a directory; name a config file (TOML)") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: byte {error.start} is not UTF-8; save it as UTF-8") from None
    except (ValueError, OSError, RecursionError) as error:  # a whole number may be too long
        if file.suffix in (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz"):
            text = f"{file} holds problems, not a config; `mugrpo init --from {file}` writes one"
            raise UsageError(text) from None
        raise UsageError(f"{file}: {error}; fix it (https://toml.io)") from None


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) for every value in nested tables."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _value(text: str) -> Any:
    """Return the value that an override's text stands for."""
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # TOML's errors, or a whole number that is too long
        return text


def _set(raw: dict[str, Any], name: str, value: Any) -> None:
    """Set the option `name` in `raw`. Another name for a group clears the group."""
    *path, leaf = name.split(".")
    table = raw
    for group in path:
        table = table.setdefault(group, {})
        if not isinstance(table, dict):
            raise UsageError(f"--{name}: {group} is an option, not a group of options")
    chooses = leaf == "name" and ".".join(path) in RunConfig.choices()
    if chooses and RunConfig.over_preset(raw)[path[0]]["name"] != value:
        table.clear()
    table[leaf] = value


def _require_preset_wins(raw: dict[str, Any], over: dict[str, Any]) -> None:
    """Raise UsageError if `raw` names another part of the method than the preset in `over`."""
    preset = over.get("preset", raw.get("preset"))
    if preset == raw.get("preset") or preset not in PRESETS:
        return
    named = dict(leaves({group: PRESETS[preset].get(group) for group in METHOD}))
    for name, value in leaves({group: raw.get(group) for group in METHOD}):
        ours = named.get(name)
        if name.endswith(".name") and name not in over and ours not in (None, value):
            raise UsageError(
                f"the preset {preset} has {name} = {ours!r}, but the config below it says {name} = "
                f"{value!r}, which would be trained in its place; leave that out there, or say "
                f"which one is meant: --{name} {ours}, or --{name} {value}"
            )


_IN_TOML = {
    "model_type": "It should be a table of options",
    "model_attributes_type": "It should be a table of options",
    "dict_type": "It should be a table",
    "tuple_type": "It should be a list",
    "too_short": "It should not be empty",  # every limit of a length is 1
}  # pydantic's type of error -> what it means to somebody who writes TOML


def _sentence(error: Any, root: type[Options]) -> str:
    """Return a sentence that explains one of pydantic's errors on the options of `root`."""
    name, value = _dotted(error["loc"], root), error["input"]
    if error["type"] == "extra_forbidden":
        inner = [f"{name}.{leaf}" for leaf, _ in leaves(value)] if isinstance(value, dict) else []
        return unknown(name, inner, root)
    if error["type"] == "missing":
        return f"{name} must be given"
    if error["type"] == "union_tag_invalid":
        known = error["ctx"]["expected_tags"].replace("'", "")
        return f"{name}.name: no such name {value['name']!r}: choose among {known}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if not name:  # the error is about the config as a whole
        return message
    message = _IN_TOML.get(error["type"], message)
    if isinstance(value, str) and (method := value.replace("_", "-")) in PRESETS:
        message += f"; the whole method is preset = {method!r}"
    if name.rpartition(".")[2] == "temperature" and value == 0:
        message += (
            "; greedy evaluation is evaluation.greedy = true, and a benchmark is nearly greedy at "
            "--temperature 0.01"
        )
    return f"{name} = {value!r}: {message[0].lower()}{message[1:]}"


def _dotted(location: Sequence[str | int], root: type[Options]) -> str:
    """Return an error's location, dotted, without the chosen name after a group or list index."""
    chosen = {1} if location and location[0] in root.choices() else set()
    listed = {place + 1 for place, part in enumerate(location) if isinstance(part, int)}
    chosen |= {place for place in listed if location[place : place + 1] in _IN_LISTS}
    return ".".join(str(part) for place, part in enumerate(location) if place not in chosen)


_NAMES = tomllib.loads(Path(__file__).with_name("names.toml").read_text())
ELSEWHERE = {name: ours for ours, names in _NAMES.items() for name in names.split()}


def unknown(name: str, inner: Sequence[str], root: type[Options]) -> str:
    """Return a sentence that says there is no option `name`, with a hint at the right one.

    `inner` are the dotted names of the options in it if it is a table.
    """
    group, _, leaf = name.rpartition(".")
    in_group = root.choices().get(group, {})
    owners = [repr(n) for n, options in in_group.items() if leaf in options.model_fields]
    if owners:
        return f"{name} is an option if {group}.name = {' or '.join(owners)}, else leave it out"
    known = list(dict.fromkeys(option.name for option in describe(root)))
    meant = {one: _meant(one, known, root) for one in inner or [name]}
    hints = [
        f"there is no option {one}; did you mean {ours}?" for one, ours in meant.items() if ours
    ]
    if hints:
        return "; ".join(hints)
    beside = [option for option in known if group and option.rpartition(".")[0] == group]
    if beside or root is not RunConfig:
        return f"there is no option {name}; choose among {', '.join(beside or known)}"
    return f"there is no option {name}; `mugrpo train --help all` lists all options"


def _meant(name: str, known: Sequence[str], root: type[Options]) -> str | None:
    """Return the option that `name` was probably meant for, or None.

    A slip comes first, then the longest end of `name` that is another program's option, then the
    same name in another section, and at last what looks similar.
    """
    parts = name.split(".")
    ends = (".".join(parts[first:]) for first in range(len(parts)))
    elsewhere = (ELSEWHERE[end] for end in ends if ELSEWHERE.get(end) in known)
    same = [option for option in known if option.rpartition(".")[2] == parts[-1]]
    slips, similar = (get_close_matches(name, known, 1, cutoff) for cutoff in (0.95, 0.85))
    found = [*slips, *elsewhere, *(same if len(same) == 1 else ()), *similar]
    return next(iter(found), None)
