"""One rule: a config is a program that its user runs; a run's directory is data.

A config file that a user names runs what it says, without questions. A run's directory may be
anybody's. If its stored config names code or addresses, and this user has not begun or approved it
on this machine, it is refused before anything of it is imported, started or connected to.

What is known is an empty file for each run in `mugrpo/runs` of $XDG_STATE_HOME (by default
~/.local/state). Its name is a hash of the run's id and of all that its config names. So a copy of
one's own run is known, and a run of another's that claims its id is not.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mugrpo.config.engines import VLLMOptions, VLLMServerOptions
from mugrpo.config.mixture import datasets_in
from mugrpo.config.private import Private
from mugrpo.config.rewards import FunctionOptions
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.errors import Unapproved, UsageError

Named = tuple[str, str]  # an option, and what it names

_known: set[Path] = set()  # to this process alone, as the folder cannot be written to


def require_known(
    stored: Mapping[str, Any],
    config: RunConfig,
    root: object,
    say: Callable[[str], None],
    *,
    trust: bool,
) -> None:
    """Raise Unapproved if the run at `root` names something and is not known here.

    `stored` is its config.json, `config` the config in it. `trust` makes it known.
    """
    record = _record(stored.get("id"), named_by(config))
    if trust:
        remember(stored, config, say)
    elif named_by(config) and record not in _known and not os.path.exists(record):
        listed = "; ".join(f"{option} = {text}" for option, text in named_by(config))
        raise Unapproved(
            f"{root} was not begun by you on this machine, and names what runs or is connected "
            f"to: {listed}. Look at it, then approve it with --trust"
        )


def remember(stored: Mapping[str, Any], config: RunConfig, say: Callable[[str], None]) -> None:
    """Make known the run with the config.json `stored`, which holds `config`.

    `say` gets a sentence if only this process can know it.
    """
    record = _record(stored.get("id"), named_by(config))
    if not named_by(config) or record in _known or os.path.exists(record):
        return
    try:
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        record.touch()
    except OSError as error:
        _known.add(record)
        say(
            f"{record.parent} cannot be written to ({error.strerror}), so that this run's "
            "directory will ask for --trust; name another folder in XDG_STATE_HOME"
        )


def named_by(config: RunConfig) -> list[Named]:
    """Return the code, commands and addresses that `config` names, each with its option."""
    return list(dict.fromkeys([*_code(config), *_programs(config), *_addresses(config)]))


def _code(config: RunConfig) -> Iterator[Named]:
    if config.objective_file:
        yield "objective.path", str(config.objective_file)
    if config.prompt.chat_template:
        yield "prompt.chat_template", config.prompt.chat_template
    yield from (("environment", code) for code in config.environment.code)
    for data_set in datasets_in(config.task):
        yield from _rewards(data_set)
    for use in config.evaluation.suites:
        if use.name.endswith(".toml"):  # it may name rewards of its own
            yield "evaluation.suites", use.name


def _rewards(options: DatasetOptions) -> Iterator[Named]:
    for reward in options.rewards:
        if isinstance(reward, FunctionOptions) and not reward.function.startswith("<"):
            yield "task.rewards", reward.function
        yield from ((f"task.rewards.{name}", _whole(a)) for name, a in reward.addresses.items())


def _programs(config: RunConfig) -> Iterator[Named]:
    engine, environment = config.engine, config.environment
    if isinstance(engine, VLLMOptions):
        if engine.python:
            yield "engine.python", engine.python
        if engine.arguments:  # some of them name classes, which vLLM imports
            yield "engine.arguments", _words(engine.arguments)
    if environment.python:
        yield "environment.python", environment.python
    if environment.kind:
        yield "environment.name", f"{environment.name}"
    if environment.kwargs:  # an environment may do anything with them
        yield "environment.kwargs", _whole(environment.kwargs)


def _addresses(config: RunConfig) -> Iterator[Named]:
    """Yield whom a run sends something. Ray and torchrun also execute what they get."""
    engine = config.engine
    yield from ((f"backend.{name}", _whole(a)) for name, a in config.backend.addresses.items())
    if config.distributed.address:
        yield "distributed.address", config.distributed.address
    if isinstance(engine, VLLMServerOptions):
        yield from (("engine.urls", _whole(url)) for url in engine.urls)
    for name in ("trackio", "wandb"):
        if project := getattr(config.sinks, name):
            yield f"sinks.{name}", project


def _whole(private: Private[Any]) -> str:
    """Return all of a private value, as nobody can approve what is hidden from them."""
    with suppress(UsageError):  # a copy of a run has no more than what is shown
        return _words(private.value)
    return _words(private.shown)


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _record(run: object, named: list[Named]) -> Path:
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:  # a user without a home, as in some containers
        state = Path(os.devnull)
    name = hashlib.sha256(json.dumps([run, named], default=str).encode()).hexdigest()
    return state / "mugrpo" / "runs" / name
