"""`mugrpo import` on the command line. Heavy imports wait until the arguments are parsed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from mugrpo.config.load import read_toml
from mugrpo.disk.errors import UsageError
from mugrpo.tools.foreign import FIELDS, FORMATS, terms


def add_exchange(
    add: Callable[..., argparse.ArgumentParser], parent: argparse.ArgumentParser
) -> None:
    """Add the command. `parent` has the options of a run."""
    text = "begin a run with the rollouts that another program has saved"
    command = add("import", text, parents=[parent])
    command.add_argument("target", type=Path, metavar="CONFIG", help="a config file (TOML)")
    files = "files or folders of rollouts, or data sets on the hub"
    command.add_argument("sources", nargs="+", metavar="ROLLOUTS", help=files)
    form = "the program that wrote them, or table: columns prompt, response, reward (the default)"
    command.add_argument("--format", choices=[*FORMATS], default="table", help=form)
    pairs = "the columns to use, such as prompt=question,reward=right+0.5*short"
    command.add_argument("--columns", metavar="FIELD=COLUMN,...", help=pairs)
    policy = "compute the behavior logprobs with this model, even if the files have some"
    command.add_argument("--policy", metavar="PATH", help=policy)
    size = "cut each prompt's responses into groups of N, and leave out the rest"
    command.add_argument("--group-size", type=int, metavar="N", help=size)
    twice = "what to do with rows that are there twice (default: refuse)"
    command.add_argument(
        "--duplicates", choices=("refuse", "drop", "keep"), default="refuse", help=twice
    )
    bad = "what to do with rows that cannot be used (default: refuse)"
    command.add_argument("--bad", choices=("refuse", "drop"), default="refuse", help=bad)
    home = "the run's directory, which must not exist yet (default: runs/NAME)"
    command.add_argument("--run-dir", type=Path, help=home)


def run_import(options: argparse.Namespace, say: Callable[[object], None]) -> None:
    """Do what the arguments of `mugrpo import` ask for."""
    read_toml(options.target)  # refuse a bad file before PyTorch is imported
    say(f"{options.target}: loading PyTorch, then the rollouts and the tokenizer")
    from mugrpo.tools.imported import Source
    from mugrpo.tools.importing import import_rollouts

    source = Source(
        options.sources,
        form=options.format,
        columns=_columns(options.columns),
        policy=options.policy,
        group_size=options.group_size,
        duplicates=options.duplicates,
        bad=options.bad,
    )
    folder = import_rollouts(
        options.target,
        source,
        run_dir=options.run_dir,
        overrides=options.overrides,
        say=say,
        check=options.stop.check,
    )
    say(f"{folder}: train on it with `mugrpo optimize {folder}`")


def _columns(text: str | None) -> dict[str, str]:
    """Return field -> column from "prompt=question,reward=score"."""
    pairs = [pair.partition("=") for pair in text.split(",")] if text else []
    if unknown := [name for name, _, column in pairs if name not in FIELDS or not column]:
        raise UsageError(
            f"--columns {text}: {unknown[0]!r} is not one of the fields, which are "
            f"{', '.join(FIELDS)}; write FIELD=COLUMN,FIELD=COLUMN"
        )
    columns = {name: column for name, _, column in pairs}
    if len(columns) < len(pairs):
        raise UsageError(f"--columns {text} names a field twice; name it once")
    try:
        terms("reward", columns.get("reward", ""))
    except ValueError:
        raise UsageError(
            f"--columns {text}: a weight must be a number, as in reward=right+0.5*short"
        ) from None
    return columns
