"""What a command names is read, and refused if it is bad, before torch is imported."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugrpo.config.load import (
    apply_overrides,
    build_config,
    load_config,
    parse_overrides,
    read_toml,
    require_places,
)
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError, absent
from mugrpo.disk.records import Problem
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.pretrained import model_path, refuse_no_folder
from mugrpo.run.trust import require_known
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
        preset = own.get("preset")
        if dict(parse_overrides(overrides)).get("preset", preset) != preset:
            raise UsageError(
                f"{target} was started with preset {preset}, whose options are already part of its "
                "config; change single options, or start another run from a config file with "
                "--run-dir"
            )
        raw = apply_overrides(own, overrides)
        config = build_config(raw, " ".join([str(folder.config), *overrides]))
        theirs = build_config(own, str(folder.config)) if overrides else config
        return folder, config, (stored, theirs)
    require_places(apply_overrides(read_toml(target), overrides), target.parent)
    config = load_config(target, overrides)
    for option, file in config.own_files.items():
        if not file.is_file():
            raise UsageError(f"{option}: {absent(file)}")
    folder = RunDir(Path(run_dir) if run_dir else Path("runs") / target.stem)
    folder.read_config()
    return folder, config, None
