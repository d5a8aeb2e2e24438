"""The arguments of the command line, and the text of --help. No torch here."""

import argparse
import inspect
import re
import shlex
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from importlib.metadata import metadata, version
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from mugrpo.config.base import imported, installed
from mugrpo.config.describe import Option, Table, tables
from mugrpo.config.load import leaves
from mugrpo.config.run import PRESETS, RunConfig
from mugrpo.disk.errors import EXIT_STATUSES, UsageError
from mugrpo.tools import vllm_env

DEMO = Path(__file__).with_name("config") / "demo.toml"

PHASE_COMMANDS = {
    "generate": "generate a stage's missing rollout shards",
    "score": "score a stage's unscored rollout shards",
    "optimize": "make a stage's missing updates",
}

TRUST = "approve the code and commands that a run begun elsewhere names"
_NOT_REPEATED = ("force", "trust")  # the run remembers these approvals

# The options of a run that --help shows; `--help all` shows all.
FIRST = (
    "preset",
    "model.path",
    "task.name",
    "task.data",
    "task.rewards",
    "prompt.form",
    "schedule.stages",
    "schedule.batches_per_stage",
    "schedule.growth",
    "rollouts.max_new_tokens",
    "optimizer.lr",
    "engine.name",
    "distributed.processes",
)


# The groups of commands in `mugrpo --help`, in this order.
BEGIN, LOOK, COMPARE, MOVE = "begin and run", "look", "compare", "keep and move"

GREETING = """\
mugrpo trains language models with verifiable rewards, in a few large stages. Begin with

  mugrpo demo                          train a small model that comes with the package: two minutes
  mugrpo init --from problems.jsonl    write a config for problems of your own
  mugrpo doctor                        see what this machine can run, and what to do next

`mugrpo --help` lists all commands. The pages: {pages}"""


_AS_TRAIN = "It takes the options of a run, as --group.option VALUE: `mugrpo train --help`."


class _Help(argparse.Action):
    """Print a command's help, that of `train` with FIRST of a run's options; or a table, or all."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, value: Any, *__: Any) -> None:
        first = value or parser.prog in ("mugrpo train", "mugrpo demo")
        text = options_text(value) if first else _AS_TRAIN
        if value in (None, "all"):
            parser.epilog = text
            parser.print_help()
        else:
            print(text)
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageErrors with a remedy."""

    example = "--help"  # words after the command's name

    def error(self, message: str) -> NoReturn:
        """Raise UsageError: a near command for an unknown one, else the message with an example."""
        if unknown := re.match(r"argument COMMAND: invalid choice: '(.+?)' \(", message):
            near = get_close_matches(unknown[1], parsers_of(self), 1)
            hint = f"try: mugrpo {near[0]}" if near else "it comes first; `mugrpo --help` lists all"
            raise UsageError(f"there is no command {unknown[1]!r}; {hint}")
        raise UsageError(f"{message}; write, for example: {self.prog} {self.example}".rstrip())


class Commands:
    """What adds commands to the parser: the core's own first, then those of extensions."""

    def __init__(self, root: _Parser) -> None:
        self._named = root.add_subparsers(
            prog="mugrpo", dest="command", metavar="COMMAND", help=argparse.SUPPRESS
        )
        self.groups: dict[str, list[tuple[str, str]]] = {
            g: [] for g in (BEGIN, LOOK, COMPARE, MOVE)
        }
        self.overriding = _overriding_parent()  # a parent: the options of a run
        self.opening = _opening_parent(self.overriding)  # a parent: what opens a run, too

    def add(
        self,
        name: str,
        text: str,
        *,
        run: str,
        group: str,
        example: str,
        parents: Sequence[_Parser] = (),
    ) -> _Parser:
        """Add a command that calls `run`, "module:function", with its parsed arguments.

        The arguments also have `say` and `stop`; the function returns an exit status, or None for
        success. `example` has the words after `mugrpo NAME`.
        """
        added = self._named.add_parser(
            name,
            description=f"{text[0].upper()}{text[1:]}.\n\n  mugrpo {name} {example}".rstrip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=not parents,  # they have it
            parents=parents,
        )
        added.example = example
        added.set_defaults(run=run)
        self.groups[group].append((name, text))
        return added


def parser() -> argparse.ArgumentParser:
    """Return the parser for all commands. What it cannot parse raises UsageError."""
    root = _Parser(
        prog="mugrpo",
        usage="mugrpo [-h] [--version] COMMAND ...",
        description="Reinforcement learning of language models in a few large stages.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"mugrpo {version('mugrpo')}")
    root.set_defaults(takes_overrides=False)
    commands = Commands(root)
    _add_first(commands)
    _add_phases(commands)
    _add_others(commands)
    for place in (place for one in installed().values() for place in one.commands):
        imported(place)(commands)
    listed = [
        "\n".join([f"{group}:", *(f"  {name:<12}{text}" for name, text in named)])
        for group, named in commands.groups.items()
    ]
    statuses = "\n".join(f"    {n:<10}{text}" for n, text in EXIT_STATUSES.items())
    end = f"`mugrpo COMMAND --help` has an example. The pages:\n{pages()}"
    root.epilog = "\n\n".join([*listed, f"exit statuses:\n{statuses}", end])
    return root


def pages() -> str:
    """Return the address of the documentation."""
    urls = metadata("mugrpo").get_all("Project-URL") or ()
    named: dict[str, str] = dict(url.split(", ", 1) for url in urls)
    return named.get("Documentation", "docs in its repository")


def _overriding_parent() -> _Parser:
    """Return a parent for commands that take a run's options; it has their --help."""
    parent = _Parser(add_help=False)
    parent.add_argument(
        *("-h", "--help"),
        action=_Help,
        nargs="?",
        metavar="TABLE",
        default=argparse.SUPPRESS,
        help="show this help; with the name of a table, its options; with `all`, every option",
    )
    parent.set_defaults(takes_overrides=True)
    return parent


def _opening_parent(overriding: _Parser) -> _Parser:
    """Return a parent for commands that open a run."""
    parent = _Parser(add_help=False, parents=[overriding])
    home = "the run's directory (default: runs/NAME for a config NAME.toml)"
    parent.add_argument("--run-dir", type=Path, help=home)
    force = "resume even if config, data, model or code changed"
    parent.add_argument("--force", action="store_true", help=force)
    parent.add_argument("--trust", action="store_true", help=TRUST)
    return parent


def add_target(command: argparse.ArgumentParser) -> None:
    """Add the argument of a command that opens a run."""
    text = "a config file (TOML) or the directory of a run"
    command.add_argument("target", type=Path, metavar="CONFIG|RUN", help=text)


def _add_first(commands: Commands) -> None:
    """Add the commands that a new user needs first."""
    text = "train tapered GRPO on an embedded task, in runs/demo"
    example = "--optimizer.lr 4e-4 --run-dir runs/faster"
    demo = _of_cli(commands, "demo", text, example, run="train", parents=[commands.opening])
    demo.set_defaults(target=DEMO)
    text = "write a config for a file of problems: guess its columns and the reward"
    init = _of_cli(commands, "init", text, "--from problems.jsonl")
    problems = "problems with their answers (a file, see task.data), or a data set on the hub"
    init.add_argument("--from", dest="data", required=True, metavar="FILE", help=problems)
    for what in ("prompt", "answer"):
        name = f"the column of {what}s (default: the first with a usual name)"
        init.add_argument(f"--{what}-column", metavar="NAME", help=name)
    config = "the config to write (default: %(default)s)"
    init.add_argument("--out", type=Path, default=Path("mine.toml"), help=config)
    model = "a model directory or a hub id (default: SmolLM2-135M-Instruct)"
    init.add_argument("--model", metavar="PATH", help=model)


def _add_phases(commands: Commands) -> None:
    """Add the commands that open a run."""
    add = partial(_of_cli, commands, parents=[commands.opening])
    text = "try data, prompts, rewards and sinks; say how long training takes at most"
    opening = [add("check", text, "mine.toml --gpus 8 --gpu-memory 80 --nodes 4")]
    another = "judge a machine with so many GPUs a node in place of this one"
    opening[0].add_argument("--gpus", type=int, metavar="N", help=another)
    opening[0].add_argument("--gpu-memory", type=float, metavar="GIB", help="of each GPU")
    opening[0].add_argument("--nodes", type=int, default=1, metavar="N", help="(default: 1)")
    text = "begin or resume a run: all stages, or those that remain"
    opening.append(add("train", text, "mine.toml --optimizer.lr 1e-5"))
    stage = "the stage, from 0 (default: the current one)"
    for name, text in PHASE_COMMANDS.items():
        phase = add(name, text, "runs/mine --stage 1", run="phase")
        opening.append(phase)
        phase.add_argument("--stage", type=int, help=stage)
        if name != "optimize":
            part = "only the shards i with i = K mod N, beside processes that do others"
            phase.add_argument("--part", metavar="K/N", help=part)
        if name == "score":
            again = "rescore all shards (with --force if the rewards changed)"
            phase.add_argument("--again", action="store_true", help=again)
        if name == "optimize":
            phase.add_argument("--until", type=int, help="stop after this update")
            wait = "wait so many minutes for shards that no process is at work on yet"
            phase.add_argument("--wait", type=float, default=0.0, metavar="MINUTES", help=wait)
    text = "measure accuracy on the held-out problems"
    opening.append(add("evaluate", text, "runs/mine --update 8", LOOK))
    update = "the update to evaluate (default: the newest checkpoint)"
    opening[-1].add_argument("--update", type=int, help=update)
    for command in opening:
        add_target(command)


def _add_others(commands: Commands) -> None:
    """Add the commands that open no run."""
    add = partial(_of_cli, commands)
    add("doctor", "say what this machine can run, how to fix the rest, and what to do next")
    text = "verify checksums; set damaged files aside for `train` to make again"
    repair = add("repair", text, "runs/mine", MOVE)
    repair.add_argument("target", type=Path, metavar="RUN", help="a run's directory")
    text = "say what of a run is there, who is at work on it, and what comes next"
    state = add("status", text, "runs/mine", LOOK)
    state.add_argument("target", type=Path, metavar="RUN", help="a run's directory")
    text = "write an HTML report on one or more runs"
    report = add("report", text, "runs/mine runs/other --out both.html", LOOK)
    several = "directories of runs; several runs share each chart"
    report.add_argument("targets", type=Path, nargs="+", metavar="RUN", help=several)
    out = "the file (default: report.html, in the run's directory if there is only one)"
    report.add_argument("--out", type=Path, help=out)
    report.add_argument("--open", action="store_true", help="show it in the browser")
    every = "write it again every N seconds until Ctrl-C; the open page follows"
    report.add_argument("--every", type=int, metavar="N", help=every)
    add("objectives", "list presets, objectives and their parts", group=COMPARE)
    separate = add("vllm-env", "make an environment with vLLM, for `engine.python`", ".venv-vllm")
    folder = f"the environment's folder (default: {vllm_env.FOLDER})"
    separate.add_argument(
        "target", type=Path, nargs="?", default=vllm_env.FOLDER, metavar="FOLDER", help=folder
    )
    text = "write a model card: what it is, how it was trained, numbers, use"
    card = add("card", text, "runs/mine", MOVE)
    card.add_argument("target", type=Path, metavar="RUN", help="a run's directory")
    card.add_argument("--out", type=Path, help="the file (default: model_card.md, in the run)")
    text = "merge a run's adapter (`lora.rank`) into its base model"
    merge = add("merge", text, "runs/adapter merged", MOVE)
    source, folder = "a run's directory, or one of its checkpoints", "a new model directory"
    merge.add_argument("target", type=Path, metavar="RUN", help=source)
    merge.add_argument("out", type=Path, metavar="FOLDER", help=folder)
    merge.add_argument("--base", help="the base model (default: the one it was trained on)")
    force = "accept a base model whose files differ"
    merge.add_argument("--force", action="store_true", help=force)


def _of_cli(
    commands: Commands,
    name: str,
    text: str,
    example: str = "",
    group: str = BEGIN,
    *,
    run: str = "",
    parents: Sequence[_Parser] = (),
) -> _Parser:
    place = f"mugrpo.cli:run_{run or name.replace('-', '_')}"
    return commands.add(name, text, run=place, group=group, example=example, parents=parents)


def resuming(options: argparse.Namespace, overrides: Sequence[str], reason: str) -> str:
    """Return the words that name the command which resumes a run that stopped for `reason`.

    It is this command. It has --force only if the remedy that `reason` names needs that, and VALUE
    for the value of an option that `reason` names.
    """
    actions = [a for a in parsers_of(parser())[options.command]._actions if a.dest in options]
    words = ["mugrpo", options.command]
    for action in sorted(actions, key=lambda action: bool(action.option_strings)):
        value = vars(options)[action.dest]
        if value == action.default or action.dest in _NOT_REPEATED:
            continue
        values = value if isinstance(value, list) else [value]
        words += [*action.option_strings, *([] if value is True else map(str, values))]
    words += ["--force"] if "force" in options and "--force" in reason else []
    for before, word in zip(["", *overrides], overrides, strict=False):
        name, equals, _ = word.partition("=")
        if before.startswith("--") and "=" not in before and before in reason:
            word = "VALUE"
        elif equals and name.startswith("--") and name in reason:
            word = f"{name}=VALUE"
        words.append(word)
    again = "type again" if options.command == "check" else "resume with"
    return f"{'after the repair, ' * ('`mugrpo repair' in reason)}{again}: {shlex.join(words)}"


def parsers_of(root: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return command -> parser."""
    [named] = [a for a in root._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(named.choices)


def options_text(of: str | None) -> str:
    """Return the help on a run's options: type, default and meaning.

    These are FIRST, those of the table named `of` and of the tables in it or, if that is "all", of
    all tables. Raises UsageError if no table has the name.
    """
    config = RunConfig()
    places = "in the config file or as --group.option VALUE"
    described = list(tables({"": RunConfig}, values=config))
    names = dict.fromkeys(re.split(r"[.[]", table.name)[0] for table in described if table.name)
    if of is None:
        entries = {option.name: _entry(option, t) for t in described for option in t.options}
        first = chain(*(entries[name] for name in FIRST))
        intro = _wrapped(f"options of a run to know first, {places}", "")
        more = (
            f"`--help TABLE` shows a table of options, `--help all` every one: {', '.join(names)}"
        )
        return "\n".join([*intro, "", *first, "", *_wrapped(more, "")])
    lines = []
    if of == "all":
        sets = ", ".join(name for name, _ in leaves(PRESETS[config.preset]))
        lines = _wrapped(
            f"options of a run, {places}. The defaults are those of a config without `preset`. It "
            f"gets {config.preset}, which sets {sets}. `mugrpo objectives` lists all presets.",
            indent="",
        )
    else:
        described = [t for t in described if re.match(rf"{re.escape(of)}(?![^.[])", t.name)]
        if not described:
            near = get_close_matches(of, names, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"--help {of}: {hint}the tables are {', '.join(names)}")
    for table in described:
        listed = table.name.endswith("[]")
        heading = f"[[{table.name[:-2]}]]" if listed else f"[{table.name}]"
        lines += ["", *(_wrapped(f"{heading}  {table.meaning}", "") if table.name else ())]
        for option in table.options:
            lines += _entry(option, table)
    return "\n".join(lines if of == "all" else lines[1:])


def _entry(option: Option, table: Table) -> list[str]:
    """Return the help lines for one option of `table`."""
    lines = _wrapped(f"  {'' if '[]' in option.name else '--'}{option.head}")
    if option.name == table.chooser:
        for choice, options in table.members.items():
            meaning = (inspect.getdoc(options) or "").split("\n\n")[0]
            lines += _wrapped(f"      {choice}: {meaning}", "          ")
        return lines
    if table.chooser:
        lines += _wrapped(f"      for {table.chooser} {', '.join(option.defaults)}")
    return lines + _wrapped(f"      {option.meaning}")


def _wrapped(text: str, indent: str = "      ") -> list[str]:
    """Return `text` in lines of at most 98 columns. All but the first start with `indent`."""
    return textwrap.wrap(
        text, 98, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
