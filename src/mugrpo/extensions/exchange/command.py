"""`mugrpo import` and `mugrpo export` on the command line. Heavy imports wait until parsed."""

import argparse
from functools import partial
from pathlib import Path

from mugrpo.arguments import MOVE, Commands, add_target
from mugrpo.config.load import read_toml
from mugrpo.disk.errors import UsageError

_HERE = "mugrpo.extensions.exchange.command"
FORMATS = ("table", "trl", "verl", "open-instruct")


def add_exchange(commands: Commands) -> None:
    """Add the commands."""
    add = partial(commands.add, group=MOVE)
    text, example = "write rollouts as a data set in the hub's layout", "runs/mine rollouts"
    run, opening = f"{_HERE}:run_export", [commands.opening]
    export = add("export", text, run=run, example=example, parents=opening)
    add_target(export)
    export.add_argument("out", type=Path, metavar="FOLDER", help="a new folder")
    export.add_argument("--stage", type=int, help="the stage, from 0 (default: all stages)")
    text = "begin a run with the rollouts that another program has saved"
    run, overriding = f"{_HERE}:run_import", [commands.overriding]
    example = "mine.toml completions --format trl --columns reward=right --policy smollm2"
    command = add("import", text, run=run, example=example, parents=overriding)
    command.add_argument("target", type=Path, metavar="CONFIG", help="a config file (TOML)")
    files = "files or folders of rollouts, or data sets on the hub"
    command.add_argument("sources", nargs="+", metavar="ROLLOUTS", help=files)
    form = "the program that wrote them, or table: columns prompt, response, reward (the default)"
    command.add_argument("--format", choices=FORMATS, default="table", help=form)
    pairs = "the columns to use, such as prompt=question,reward=right+0.5*short"
    command.add_argument("--columns", metavar="FIELD=COLUMN,...", default="", help=pairs)
    policy = "compute the behavior logprobs with this model, even if the files have some"
    command.add_argument("--policy", metavar="PATH", help=policy)
    size = "cut each prompt's responses into groups of N, and leave out the rest"
    command.add_argument("--group-size", type=int, metavar="N", help=size)
    home = "the run's directory, which must not exist yet (default: runs/NAME)"
    command.add_argument("--run-dir", type=Path, help=home)


def run_export(options: argparse.Namespace) -> None:
    from mugrpo.cli import check_stage, opened

    with opened(options) as run:
        from mugrpo.extensions.exchange.exporting import export_rollouts

        check_stage(run, options.stage)
        run.progress.say(export_rollouts(run, options.out, options.stage))


def run_import(options: argparse.Namespace) -> None:
    read_toml(options.target)  # refuse a bad file before PyTorch is imported
    options.say(f"{options.target}: loading PyTorch, then the rollouts and the tokenizer")
    from mugrpo.extensions.exchange.importing import import_rollouts
    from mugrpo.extensions.exchange.writing import Source

    columns = _columns(options.columns)
    source = Source(options.sources, options.format, columns, options.policy, options.group_size)
    folder = import_rollouts(
        options.target,
        source,
        run_dir=options.run_dir,
        overrides=options.overrides,
        say=options.say,
        check=options.stop.check,
    )
    options.say(f"{folder}: train on it with `mugrpo optimize {folder}`")


def _columns(text: str) -> dict[str, str]:
    """Return field -> column from "prompt=question,reward=score"."""
    from mugrpo.extensions.exchange.rows import FIELDS

    pairs = [pair.partition("=") for pair in text.split(",")] if text else []
    if unknown := [name for name, _, column in pairs if name not in FIELDS]:
        raise UsageError(
            f"--columns {text}: {unknown[0]!r} is not one of the fields, which are "
            f"{', '.join(FIELDS)}; write FIELD=COLUMN,FIELD=COLUMN; FIELD= leaves one out"
        )
    return {name: column for name, _, column in pairs}
