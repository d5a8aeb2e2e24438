"""What a command names is read, and refused if it is bad, before torch is imported.

One rule of trust: a config is a program that its user runs; a run's directory is data.

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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugrpo.config.engines import VLLMOptions, VLLMServerOptions
from mugrpo.config.load import apply_overrides, build_config, load_config
from mugrpo.config.rewards import FunctionOptions
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import datasets_in
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.pretrained import model_path, refuse_no_folder
from mugrpo.tasks import make_task
from mugrpo.tasks.base import Task


@dataclass(frozen=True)
class Target:
    """A run that a command names, not opened yet."""

    folder: RunDir
    config: RunConfig
    task: Task
    problems: tuple[list[Problem], list[Problem]]  # to train on, and held out


def read_target(
    target: Path | str,
    *,
    overrides: Sequence[str] = (),
    run_dir: Path | str | None = None,
    trust: bool = False,
    asks: bool = True,
) -> Target:
    """Return the run that `target` names, see `open_run`.

    Raises UsageError for options and data that are refused, if a folder is neither a run nor a
    model, and as `require_known` does if `asks`: before anything that the config names is read.
    """
    folder, config, stored = _folder_and_config(Path(target), overrides, run_dir)
    if asks and stored:
        require_known(*stored, target, trust=trust)
    refuse_no_folder(model_path(config.model))
    task = make_task(config.task, config.workers)
    return Target(folder, config, task, problems_of(task, config))


def problems_of(task: Task, config: RunConfig) -> tuple[list[Problem], list[Problem]]:
    """Return the problems to train on and those held out.

    Raises UsageError if the run evaluates but no problem is held out.
    """
    problems, eval_problems = task.train_problems(), task.eval_problems()
    if config.evaluation.every and not eval_problems:
        raise UsageError(
            "no problem is held out to evaluate on; hold some out (task.eval_share, "
            "task.eval_data), or turn evaluation off with --evaluation.every 0"
        )
    return list(problems), list(eval_problems)


def _folder_and_config(
    target: Path, overrides: Sequence[str], run_dir: Path | str | None
) -> tuple[RunDir, RunConfig, tuple[dict[str, Any], RunConfig] | None]:
    """Return the directory and the config of the run that `target` names.

    If `target` is a directory, also return its config.json, and the config in it. Raises UsageError
    if it is a directory without a run, or if the options contradict the run in it.
    """
    if target.is_dir():
        if run_dir is not None:
            raise UsageError(
                f"{target} is already a run's directory; leave out --run-dir {run_dir}"
            )
        folder = RunDir(target)
        stored = folder.read_config()
        if stored is None:
            raise UsageError(f"{target} is an empty directory, not a run; name a config file")
        own = stored["config"]
        raw = apply_overrides(own, overrides)
        if raw.get("preset") != (preset := own.get("preset")):
            raise UsageError(
                f"{target} was started with preset {preset}, whose options are already part of its "
                "config; change single options, or start another run from a config file with "
                "--run-dir"
            )
        config = build_config(raw, " ".join([str(folder.config), *overrides]))
        theirs = build_config(own, str(folder.config)) if overrides else config
        return folder, config, (stored, theirs)
    config = load_config(target, overrides)
    for option, file in config.own_files.items():
        if not file.is_file():
            raise UsageError(f"{option} = {str(file)!r}: there is no such file")
    folder = RunDir(Path(run_dir) if run_dir else Path("runs") / target.stem)
    folder.read_config()
    return folder, config, None


Named = tuple[str, str]  # an option, and what it names


def require_known(
    stored: Mapping[str, Any], config: RunConfig, root: object, *, trust: bool
) -> None:
    """Raise UsageError if the run at `root` names something and is not known here.

    `stored` is its config.json, `config` the config in it. `trust` makes it known.
    """
    if trust:
        remember(stored, config)
    elif (named := named_by(config)) and not _record(stored, named).exists():
        listed = "; ".join(f"{option} = {text}" for option, text in named)
        raise UsageError(
            f"{root} was not begun by you on this machine, and names what runs or is connected "
            f"to: {listed}. Look at it, then approve it with --trust"
        )


def remember(stored: Mapping[str, Any], config: RunConfig) -> None:
    """Make known the run with the config.json `stored`, which holds `config`, if it can be."""
    if named := named_by(config):
        with suppress(OSError):  # then its folder asks for --trust
            record = _record(stored, named)
            record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            record.touch()


def named_by(config: RunConfig) -> list[Named]:
    """Return the code, commands and addresses that `config` names, each with its option.

    vLLM imports classes that its arguments name.
    """
    engine, environment = config.engine, config.environment
    named: list[tuple[str, Any]] = [
        *config.own_files.items(),
        ("prompt.chat_template", config.prompt.chat_template),
        *(("environment", code) for code in environment.code),
    ]
    for reward in (reward for one in datasets_in(config.task) for reward in one.rewards):
        if isinstance(reward, FunctionOptions) and not reward.function.startswith("<"):
            named.append(("task.rewards", reward.function))
    for use in config.evaluation.suites:
        if use.name.endswith(".toml"):  # it may name rewards of its own
            named.append(("evaluation.suites", use.name))
    if isinstance(engine, VLLMOptions):
        named += [("engine.python", engine.python), ("engine.arguments", engine.arguments)]
    named += [
        ("environment.python", environment.python),
        ("environment.name", environment.kind and environment.name),
        ("environment.kwargs", environment.kwargs),
    ]
    if isinstance(engine, VLLMServerOptions):
        named += [("engine.urls", url) for url in engine.urls]
    named.append(("sinks.wandb", config.sinks.wandb))
    return list(dict.fromkeys((option, _words(value)) for option, value in named if value))


def _words(value: Any) -> str:
    if isinstance(value, str | Path):
        return str(value)
    return json.dumps(value, sort_keys=True, default=str)


def _record(stored: Mapping[str, Any], named: list[Named]) -> Path:
    """Return the file that exists if the run is known."""
    home = Path(os.environ.get("HOME") or os.devnull)  # some containers' users have none
    state = Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state")
    text = json.dumps([stored.get("id"), named], default=str)
    return state / "mugrpo" / "runs" / hashlib.sha256(text.encode()).hexdigest()
