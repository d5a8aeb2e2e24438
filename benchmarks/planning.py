"""Plans against measured runs: `python benchmarks/planning.py`.

For each model, this machine is measured as `mugrpo plan --measure` does, and one run is made: the
first of its list. Every other run is planned in two ways before it is compared with what it took:

    from the run       as `mugrpo plan RUN`: with the first run's lengths and measured seconds
    from the machine   with the first run's lengths, and the measured machine

None of the planned numbers has seen the run that it is compared with. All runs of a model make the
same number of updates, one after the other. Writes benchmarks/results/planning/planning.json and
README.md beside it, misses included. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mugrpo.config.load import build_config
from mugrpo.config.toml import as_document
from mugrpo.report.read import RunData, read_runs
from mugrpo.tools.benchmark.tables import markdown
from mugrpo.tools.plan.calibrate import measured_by, misses
from mugrpo.tools.plan.lengths import from_run
from mugrpo.tools.plan.machine import load_machine
from mugrpo.tools.plan.schedules import Planner
from mugrpo.tools.plan.setting import Measured, Setting, as_configured, shape_of
from side_by_side import RESULTS, ROOT

SHOWN = ("generate", "optimize", "refresh", "evaluate")
LIMITS = {"training": 0.15}  # of the whole run; a part may miss by PART
PART = 0.25


@dataclass(frozen=True)
class Case:
    """A run: what differs from the first one of its model."""

    name: str
    updates: int  # after each refresh
    changes: dict[str, dict[str, Any]]


def case(updates: int, **changes: dict[str, Any]) -> Case:
    words = [f"{group}.{key} = {v}" for group, d in changes.items() for key, v in d.items()]
    return Case(", ".join([f"\u03bc = {updates}", *words]), updates, changes)


TOTAL = {"chain": 64, "letters": 64, "smollm2": 12}
CASES = {
    "chain": [
        case(16),
        case(4),
        case(32),
        case(64),
        case(16, engine={"slots": 32}),
        case(16, schedule={"group_size": 16}),
        case(64, optimizer={"micro_batch_tokens": 1024}),
    ],
    "letters": [case(16), case(4), case(32), case(64), case(64, engine={"slots": 512})],
    "smollm2": [case(4), case(12), case(6)],
}


def raw_config(model: str, case: Case) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "preset": "tapered-grpo",
        "model": {"path": model},
        "schedule": {
            "stages": TOTAL[model] // case.updates,
            "batches_per_stage": case.updates,
            "growth": 1.0,
            "problems_per_update": 8,
            "group_size": 8,
        },
        "evaluation": {"every": TOTAL[model] // 2},
        "samples": {"every": 0},
    }
    if model == "smollm2":
        data = str(ROOT / "configs" / "addition.jsonl")
        template = "What is {prompt}? Answer with just the number."
        raw["task"] = {"name": "dataset", "data": data, "prompt_template": template}
        raw["task"] |= {"rewards": ["numeric"], "eval_share": 0.25}
        raw["prompt"] = {"form": "chat"}
        raw["rollouts"] = {"max_new_tokens": 16}
        raw["optimizer"] = {"lr": 2e-5, "micro_batch_tokens": 2048}
    else:
        raw["task"] = {"name": model, "eval_problems": 128}
        raw["optimizer"] = {"lr": 1e-4}
    for group, options in case.changes.items():
        raw[group] = {**raw.get(group, {}), **options}
    return raw


def made(work: Path, model: str, number: int, case: Case) -> Path:
    """Return the run of a case; make it if it is not there."""
    folder = work / f"{model}-{number}"
    file = work / f"{model}-{number}.toml"
    file.write_text(as_document(raw_config(model, case)))
    words = [sys.executable, "-m", "mugrpo", "train", str(file), "--run-dir", str(folder)]
    subprocess.run([*words, "--trust"], check=True, stdout=subprocess.DEVNULL)
    return folder


def measured(work: Path, model: str, case: Case) -> Path:
    """Return the file of this machine, measured with the model's shape."""
    file = work / f"{model}-machine.toml"
    if not file.exists():
        from mugrpo.tools.plan.measuring import measure

        measure(build_config(raw_config(model, case), "benchmark"), None, file)
    return file


def rows(work: Path, model: str) -> Iterator[dict[str, Any]]:
    """Yield what was planned and measured for each run but the first."""
    first, *others = CASES[model]
    machine = load_machine(str(measured(work, model, first)))
    base = made(work, model, 0, first)
    [run] = read_runs([base])
    config = build_config(run.config, str(base))
    setting = Setting(config, shape_of(config, None), machine, from_run(base))
    known = measured_by(run, setting)
    alone = Measured(varied=known.varied, score=known.score, start=known.start)
    for number, one in enumerate(others, start=1):
        [other] = read_runs([made(work, model, number, one)])
        changed = build_config(other.config, "benchmark")
        for source, found in (("the run", known), ("the machine", alone)):
            planned = replace(setting, config=changed, measured=found)
            yield {"model": model, "run": one.name, "from": source, **_compared(planned, other)}


def _compared(setting: Setting, run: RunData) -> dict[str, Any]:
    stages = as_configured(setting.config.schedule)
    planned = Planner(setting).planned(stages, "colocated", 1, 1)
    return {"seconds": misses(planned, run)}


def table(found: Sequence[dict[str, Any]]) -> str:
    head = ["model", "run", "planned from", "training", *SHOWN, "within"]
    return markdown(head, [_row(row) for row in found])


def _row(row: dict[str, Any]) -> list[str]:
    seconds = row["seconds"]
    cells = []
    for part in ("training", *SHOWN):
        planned, taken = seconds[part]
        off = f" ({planned / taken - 1:+.0%})" if taken > 0 else ""
        cells.append(f"{planned:.1f} for {taken:.1f} s{off}")
    return [row["model"], row["run"], row["from"], *cells, _verdict(seconds)]


def _verdict(seconds: dict[str, Any]) -> str:
    """Return "yes", or the parts that miss their limit. Parts below 5 % of a run are left out."""
    whole = sum(seconds["training"][1:])
    far = [
        part
        for part, (planned, taken) in seconds.items()
        if taken > 0.05 * whole and abs(planned / taken - 1) > LIMITS.get(part, PART)
    ]
    return f"no: {', '.join(far)}" if far else "yes"


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    cli.add_argument("--models", default="chain,letters", help="of chain, letters and smollm2")
    cli.add_argument("--work", type=Path, default=Path("runs") / "planning", help="the runs")
    cli.add_argument("--output", type=Path, default=RESULTS / "planning", help="the results")
    options = cli.parse_args(argv)
    options.work.mkdir(parents=True, exist_ok=True)
    options.output.mkdir(parents=True, exist_ok=True)
    found = [row for model in options.models.split(",") for row in rows(options.work, model)]
    text = table(found)
    (options.output / "planning.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.output / "README.md").write_text(f"# Planned and measured seconds\n\n{text}\n")
    print(text)
    return found


if __name__ == "__main__":
    main()
