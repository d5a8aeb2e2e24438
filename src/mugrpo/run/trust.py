"""What a stored config would run or connect to, and whether this user has agreed to it.

One rule: a config is a program that its user runs; a run's directory is data.

A config file that a user names runs what it says, without questions. A run's directory may be
anybody's. If its stored config names code or addresses, and this user has not begun or approved it
on this machine as it is now, it is refused before anything of it is imported, started or connected
to.

What is known is a file for each run in `mugrpo/runs` of $XDG_STATE_HOME (by default
~/.local/state). Its name is a hash of the run's id and of all that its config names, so a copy of
one's own run is known, and a run of another's that claims its id is not. It holds the hashes of
the files that are named: other code behind the same name is another question.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mugrpo.config.base import imported, installed
from mugrpo.config.rewards import FunctionOptions
from mugrpo.config.run import PromptOptions, RunConfig
from mugrpo.config.tasks import DatasetOptions, datasets_in
from mugrpo.config.training import SuiteUse
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_json, sha256_of
from mugrpo.processes.functions import files_of_code


class Named(NamedTuple):
    """An option, what it names, and the files of that which exist here."""

    option: str
    text: str
    files: tuple[Path, ...] = ()


class _SuiteOptions(Protocol):
    @property
    def task(self) -> DatasetOptions: ...
    @property
    def prompt(self) -> PromptOptions: ...


class Suite(Protocol):
    """A benchmark suite as an extension reads it."""

    @property
    def file(self) -> Path: ...
    @property
    def options(self) -> _SuiteOptions: ...


def suites_named(use: SuiteUse) -> Iterator[Suite]:
    """Yield what the file of a suite says. Raises UsageError if it cannot be read."""
    for extension in installed().values():
        if extension.suites:
            yield from imported(extension.suites)(use)


def require_known(
    stored: Mapping[str, Any], config: RunConfig, root: object, *, trust: bool
) -> None:
    """Raise UsageError if the run at `root` names something that is not known here as it is now.

    `stored` is its config.json, `config` the config in it. `trust` makes it known.
    """
    if trust:
        remember(stored, config)
        return
    named = named_by(config)
    if not named:
        return
    known = _known(_record(stored, named))
    if known is None:
        listed = "; ".join(f"{each.option} = {each.text}" for each in named)
        raise UsageError(
            f"{root} was not begun by you on this machine, and names what runs or is connected "
            f"to: {listed}. Look at it, then approve it with --trust"
        )
    now = _sums(named)
    if changed := sorted(file for file in known | now if known.get(file) != now.get(file)):
        raise UsageError(
            f"{root} names what has changed since you began or approved it: {'; '.join(changed)}. "
            "Look at it, then approve it with --trust"
        )


def remember(stored: Mapping[str, Any], config: RunConfig) -> None:
    """Make known the run with the config.json `stored`, which holds `config`, if it can be."""
    if named := named_by(config):
        with suppress(OSError):  # then its folder asks for --trust
            record, sums = _record(stored, named), _sums(named)
            record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _known(record) != sums:
                publish_json(record, sums)


def named_by(config: RunConfig) -> list[Named]:
    """Return the code, commands and addresses that `config` names, each with its option.

    vLLM imports classes that its arguments name.
    """
    return list(dict.fromkeys([*_code_of(config), *_reached_by(config)]))


def _code_of(config: RunConfig) -> Iterator[Named]:
    """Yield what this interpreter imports, and templates."""
    for option, file in config.own_files.items():
        yield _file(option, file)
    yield from _template(config.prompt, "prompt.chat_template")
    for code in config.environment.code:
        yield _code("environment", code)
    for data in datasets_in(config.task):
        yield from _rewards(data, "task.rewards")
    for use in config.evaluation.suites:
        yield from _suite(use)


def _reached_by(config: RunConfig) -> Iterator[Named]:
    """Yield interpreters, what they are given, and addresses."""
    engine, environment = config.engine, config.environment
    given = {f"engine.{name}": getattr(engine, name) for name in engine.reaches}
    given |= {f"environment.{name}": getattr(environment, name) for name in environment.reaches}
    given |= {"sinks.trackio": config.sinks.trackio, "sinks.wandb": config.sinks.wandb}
    for option, value in given.items():
        for one in filter(None, value if isinstance(value, tuple) else [value]):
            files = (Path(one),) if isinstance(one, str) and os.path.isfile(one) else ()
            yield Named(option, _words(one), files)


def _suite(use: SuiteUse) -> Iterator[Named]:
    """Yield a suite that is a file, and what it names in turn. Ours name nothing."""
    if use.file is None:
        return
    yield _file("evaluation.suites", use.file)
    with suppress(UsageError):  # to read it is refused later, and runs nothing either
        for suite in suites_named(use):
            yield from _rewards(suite.options.task, f"{suite.file}: task.rewards")
            yield from _template(suite.options.prompt, f"{suite.file}: prompt.chat_template")


def _rewards(data: DatasetOptions, option: str) -> Iterator[Named]:
    for reward in data.rewards:
        if isinstance(reward, FunctionOptions):
            yield _code(option, reward.function)


def _template(prompt: PromptOptions, option: str) -> Iterator[Named]:
    if prompt.chat_template is not None:
        yield _file(option, Path(prompt.chat_template))


def _file(option: str, file: Path) -> Named:
    return Named(option, str(file), (file,) if file.is_file() else ())


def _code(option: str, code: str) -> Named:
    return Named(option, code, tuple(files_of_code(code)))


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _sums(named: list[Named]) -> dict[str, str]:
    """Return file -> hash of all that is named."""
    return {str(file): sha256_of(file) for each in named for file in each.files}


def _known(record: Path) -> dict[str, str] | None:
    """Return file -> hash of what was approved, or None if nothing was."""
    try:
        return dict(json.loads(record.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _record(stored: Mapping[str, Any], named: list[Named]) -> Path:
    """Return the file that exists if the run is known."""
    home = Path(os.environ.get("HOME") or os.devnull)  # some containers' users have none
    state = Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state")
    names = sorted((each.option, each.text) for each in named)
    text = json.dumps([stored.get("id"), names], default=str)
    return state / "mugrpo" / "runs" / hashlib.sha256(text.encode()).hexdigest()
