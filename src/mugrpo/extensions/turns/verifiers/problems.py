"""The problems of an environment of verifiers as a data set: `mugrpo problems`."""

import argparse
import json
from pathlib import Path

from mugrpo.arguments import MOVE, Commands
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.errors import UsageError
from mugrpo.extensions.turns import EnvironmentOptions


def add_problems(commands: Commands) -> None:
    """Add the command."""
    problems = commands.add(
        "problems",
        "write the problems of a verifiers environment to a file",
        run="mugrpo.extensions.turns.verifiers.problems:run_problems",
        group=MOVE,
        example="mine.toml",
    )
    config = "the config; its task.data names the file to write, which must not exist yet"
    problems.add_argument("target", type=Path, metavar="CONFIG", help=config)
    most = "write the first N problems at most (default: %(default)s)"
    problems.add_argument("--count", type=int, default=1024, metavar="N", help=most)


def run_problems(options: argparse.Namespace) -> None:
    """Write one row for each problem: its "id", first messages ("prompt"), "answer" and "task".

    Raises UsageError if the config names no environment of verifiers, if the environment cannot be
    loaded, or if the file is no .jsonl or exists.
    """
    from mugrpo.config.load import load_config
    from mugrpo.extensions.turns.verifiers.pool import VerifiersEnvironments

    config = load_config(options.target)
    environment = config.environment
    if not isinstance(environment, EnvironmentOptions) or not environment.of_verifiers:
        raise UsageError(
            f"{options.target} names no environment of verifiers; set environment.name = "
            "'verifiers:NAME' and environment.python"
        )
    if not isinstance(config.task, DatasetOptions) or not config.task.data.endswith(".jsonl"):
        raise UsageError(
            f"{options.target} names no file for the problems; set task.name = 'dataset' and "
            "task.data = 'FILE.jsonl'"
        )
    out = Path(config.task.data)
    if out.exists():
        raise UsageError(f"{out} exists already; remove it to write it again")
    out.parent.mkdir(parents=True, exist_ok=True)
    environments = VerifiersEnvironments(environment, config.workers)
    try:
        rows = environments.problems(options.count)
    finally:
        environments.close()
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options.say(f"{out}: {len(rows)} problems of {environment.name}")
