"""`mugrpo bakeoff`, `alignment` and `study` on the command line. Heavy imports wait."""

import argparse
import sys
from functools import partial
from pathlib import Path

from mugrpo.arguments import COMPARE, Commands, add_target

_HERE = "mugrpo.extensions.lab.commands"


def add_commands(commands: Commands) -> None:
    """Add the commands."""
    add = partial(commands.add, group=COMPARE)
    opening = partial(add, parents=[commands.opening])
    text = "train several methods on a stage's rollouts"
    example = "runs/mine --objectives mu-grpo,grpo"
    bakeoff = opening("bakeoff", text, run=f"{_HERE}:run_bakeoff", example=example)
    text = "compare gradients on a stage's rollouts with the on-policy gradient"
    run, example = f"{_HERE}:run_alignment", "runs/mine --stage 0"
    alignment = opening("alignment", text, run=run, example=example)
    methods = 'presets or TOML files, separated by commas; "all" for every preset'
    for compared in (bakeoff, alignment):
        add_target(compared)
        compared.add_argument("--stage", type=int, default=0, help="the stage, from 0 (default: 0)")
    bakeoff.add_argument("--objectives", required=True, metavar="A,B,...", help=methods)
    methods += " (default: the run's own)"
    alignment.add_argument("--objectives", metavar="A,B,...", help=methods)
    groups = "compare at most this many groups of unused rollouts (default: 128)"
    alignment.add_argument("--groups", type=int, default=128, help=groups)
    text = "run every combination of options and seeds, or show the results"
    study = add("study", text, run=f"{_HERE}:run_study", example="run studies/demo.toml")
    action = "run the missing cells, or show the table and draw the page again"
    study.add_argument("action", choices=("run", "show"), help=action)
    study.add_argument("target", type=Path, metavar="FILE", help="the study (TOML)")
    work = "the directory of the study's runs (default: runs/studies/NAME)"
    study.add_argument("--work", type=Path, help=work)
    study.add_argument("--jobs", type=int, help="cells at once (default: as many as cores allow)")
    study.add_argument("--keep", action="store_true", help="keep rollouts and checkpoints")


def run_bakeoff(options: argparse.Namespace) -> None:
    from mugrpo.cli import check_stage, opened

    with opened(options) as run:
        from mugrpo.extensions.lab.bakeoff import bakeoff

        check_stage(run, options.stage)
        methods = options.objectives.split(",")
        table = bakeoff(run, options.stage, methods, force=options.force)
        run.progress.say(f"{table.read_text()}{table.with_name('report.html')}")


def run_alignment(options: argparse.Namespace) -> None:
    from mugrpo.cli import check_stage, opened

    with opened(options) as run:
        from mugrpo.extensions.lab.alignment import alignment, table

        check_stage(run, options.stage)
        methods = options.objectives.split(",") if options.objectives else []
        rows = alignment(run, options.stage, methods, options.groups)
        run.progress.say(table(rows))


def run_study(options: argparse.Namespace) -> int:
    """Do what the arguments of `mugrpo study` ask for. Return 3 if a cell failed."""
    from mugrpo.extensions.lab.study.spec import load_study

    load_study(options.target)  # refuse a bad file before PyTorch is imported
    from mugrpo.extensions.lab.study.running import run_study, show_study

    if options.action == "show":
        options.say(show_study(options.target))
        return 0
    work = options.work or Path("runs") / "studies" / options.target.stem
    page, failed = run_study(
        options.target, work, options.jobs, keep=options.keep, say=options.say, stop=options.stop
    )
    options.say(page)
    if failed:
        print(f"failed cells, named above: {len(failed)}", file=sys.stderr)
    return 3 if failed else 0
