"""`mugrpo benchmark`: models and checkpoints on suites, and comparisons. Heavy imports wait."""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mugrpo.arguments import LOOK, TRUST, Commands
from mugrpo.disk.errors import UsageError

Say = Callable[[object], None]

_SAMPLING = ("samples", "max_new_tokens", "temperature", "top_p", "problems")


def add_benchmark(commands: Commands) -> None:
    """Add the command."""
    text = "measure models and checkpoints on benchmark suites, or compare two measurements"
    run, example = "mugrpo.extensions.evals.command:run_benchmark", "runs/mine --suite gsm8k"
    parents = [commands.overriding]
    command = commands.add("benchmark", text, run=run, group=LOOK, example=example, parents=parents)
    targets = (
        "a run's directory, a model directory or a hub id; or `compare A B`, where A and B are "
        "folders of results or runs, and RUN@N is a run after N updates"
    )
    command.add_argument("targets", nargs="+", metavar="TARGET", help=targets)
    names = "suites, groups of suites or files of your own, separated by commas"
    command.add_argument("--suite", metavar="A,B,...", help=names)
    at = 'updates of a run, separated by commas, or "all" (default: 0 and the newest checkpoint)'
    command.add_argument("--update", metavar="N,M,...", help=at)
    data = "a local file with the problems of the suite (of several: NAME=FILE,NAME=FILE,...)"
    command.add_argument("--data", metavar="FILE", help=data)
    command.add_argument("--problems", type=int, metavar="N", help="measure N problems of a suite")
    command.add_argument("--samples", type=int, metavar="K", help="responses per problem")
    tokens = "longest response"
    command.add_argument("--max-new-tokens", type=int, metavar="N", help=tokens)
    temperature = "sampling temperature (default: the run's; of a model, the suite's)"
    command.add_argument("--temperature", type=float, help=temperature)
    top_p = "sample from the most likely tokens with this probability (default: the run's)"
    command.add_argument("--top-p", type=float, help=top_p)
    out = (
        "the folder of the results (default: RUN/benchmarks, or runs/benchmarks/NAME for a model); "
        "of `compare`, a JSON file to write"
    )
    command.add_argument("--out", type=Path, help=out)
    command.add_argument("--trust", action="store_true", help=TRUST)


def run_benchmark(options: argparse.Namespace) -> None:
    """Measure what the arguments name, or compare two measurements."""
    (_compare if options.targets[0] == "compare" else _measure)(options, options.say)


def _measure(options: argparse.Namespace, say: Say) -> None:
    from mugrpo.extensions.evals.options import load_suites

    if len(options.targets) > 1:
        raise UsageError(
            f"one model or run at a time: {options.targets[1]!r} is a second one; "
            "`mugrpo benchmark compare A B` compares two measurements"
        )
    if options.suite is None:
        raise UsageError("name suites with --suite, such as --suite gsm8k or --suite math")
    suites = load_suites(options.suite)
    say(f"{options.targets[0]}: loading PyTorch, then the problems and the tokenizer")
    from mugrpo.extensions.evals.measuring import measure
    from mugrpo.extensions.evals.tables import table, write_table
    from mugrpo.run.progress import Progress

    folder, results = measure(
        options.targets[0],
        suites,
        chosen=_given(options, _SAMPLING),
        data=_data(options.data, [suite.name for suite in suites]),
        updates=options.update,
        overrides=options.overrides,
        out=options.out,
        trust=options.trust,
        progress=Progress(),
        stop=options.stop,
    )
    say(table(results))
    say(write_table(folder))


def _given(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return those of the named options that the command line sets."""
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _data(text: str | None, names: list[str]) -> dict[str, Path]:
    """Return suite -> file from `FILE`, for a single suite, or `NAME=FILE,NAME=FILE,...`."""
    if text is None:
        return {}
    if len(names) == 1 and text.partition("=")[0] not in names:  # a path can have a = in it
        return {names[0]: Path(text)}
    pairs = [pair.partition("=") for pair in text.split(",")]
    if wrong := [name for name, _, file in pairs if name not in names or not file]:
        raise UsageError(
            f"--data {text}: {wrong[0]!r} is none of the suites; write NAME=FILE,NAME=FILE with "
            f"NAME among {', '.join(names)}"
        )
    return {name: Path(file) for name, _, file in pairs}


def _compare(options: argparse.Namespace, say: Say) -> None:
    if given := [*_given(options, (*_SAMPLING, "update", "data")), *options.overrides]:
        raise UsageError(f"compare reads stored results, so it takes no {given[0]}")
    names = options.targets[1:]
    if len(names) != 2:
        raise UsageError(f"compare needs two measurements, A and B, not {len(names)}")

    from mugrpo.disk.publishing import publish_json
    from mugrpo.extensions.evals.comparing import compare, stored
    from mugrpo.extensions.evals.tables import comparison_table

    wanted = options.suite.split(",") if options.suite else None
    compared = compare(*(stored(name, wanted) for name in names))
    say(comparison_table(compared))
    if options.out:
        publish_json(options.out, asdict(compared))
