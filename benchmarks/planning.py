"""Plans against measured runs: `python benchmarks/planning.py`. Needs no GPU.

The cells of the studies were measured run by run, with seconds by part. In each group of cells that
differ only in their method, the run of GRPO with the most refreshes plays the run that one has:
`mugrpo plan RUN` is computed from its seconds. Every other run of the group, with the same seed, is
then planned and compared with what it took. No planned number has seen the run that it is compared
with. Response lengths were not kept with the cells, so those of the task stand for them.

With `--live WORK`, runs are trained in the directory WORK, for about a quarter of an hour, and
compared with the plans that were made for them before (benchmarks/planning_live.py).

Writes every comparison, misses included, to benchmarks/results/planning and docs/planning.md.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.extensions.evals.tables import markdown
from mugrpo.extensions.lab.plan.calibrate import measured_by
from mugrpo.extensions.lab.plan.lengths import Lengths, Seen, assumed
from mugrpo.extensions.lab.plan.machine import load_machine
from mugrpo.extensions.lab.plan.setting import Setting, as_configured, shape_of
from mugrpo.report.read import RunData
from planning_live import planned, rows, stored
from side_by_side import RESULTS, ROOT, machine

STUDIES = (
    *("wall_clock", "few_stages", "few_stages_letters", "four_stages_smollm2", "refresh_cost"),
)
SHOWN = ("refresh", "generate", "optimize", "training")
SPEED = "same work"  # the evaluations' seconds, of the run that a plan is from and of the planned
WHOLE, PART, SMALL = 0.15, 0.25, 0.05  # limits of the whole and of a part; parts below SMALL of it

Row = dict[str, Any]


@dataclass(frozen=True)
class Compared:
    """A method's runs: planned and measured seconds of each part, run by run."""

    study: str
    name: str
    base: str
    seconds: dict[str, list[tuple[float, float]]]


def cells(study: str) -> Iterator[list[Row]]:
    """Yield the cells of a study that differ only in their method."""
    rows = pq.read_table(ROOT / "studies" / "results" / study / "cells.parquet").to_pylist()
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        axes = {k: v for k, v in row.items() if k.startswith("axis/") and k != "axis/method"}
        groups[tuple(sorted(axes.items())), row["seed"]].append(row)
    yield from groups.values()


def config_of(row: Row) -> RunConfig:
    return build_config(json.loads(row["config"]), row["cell"])


def lengths_of(config: RunConfig) -> Lengths:
    """Return the lengths that the task's right answers have, with the end-of-sequence token.

    Those of the addition task, short answers in words or digits, are assumed.
    """
    task = config.task
    if task.name == "chain":
        each = np.full((64, 8), 6 * (task.terms - 1))
        prompt = 2 * task.terms
    elif task.name == "letters":
        letters = np.random.default_rng(0).integers(task.shortest, task.longest + 1, 64)
        each, prompt = np.repeat(letters[:, None] + 1, 8, axis=1), 14
    else:
        limit = config.rollouts.max_new_tokens
        return assumed(limit, prompt=43, median=min(8.0, limit), sigma=0.8)
    return Lengths((Seen(0, np.full(len(each), prompt), each),), "the task's")


def as_run(row: Row, config: RunConfig) -> RunData:
    """Return a cell as the run that it was: its seconds are divided equally within each part."""
    stages = as_configured(config.schedule)
    firsts = np.cumsum([0, *stages[:-1]]).tolist()
    total, count = sum(stages), len(stages)
    start = row.get("seconds/refresh/start") or 0.0
    every = getattr(config.engine, "rest", "stay") == "end"
    starts = [start / count] * count if every else [start] + [0.0] * (count - 1)
    refreshes = [
        {
            "update": first,
            "rollouts": row["rollouts"] / count,
            "time/refresh": (row["seconds/refresh"] - start) / count + started,
            "time/refresh/start": started,
            "time/generate": row["seconds/generate"] * updates / total,
            "time/score": row["seconds/score"] / count,
        }
        for first, updates, started in zip(firsts, stages, starts, strict=True)
    ]
    updates = [
        {"update": n, "time/update": row["seconds/optimize"] / total} for n in range(1, total + 1)
    ]
    saved = np.cumsum(stages)[:-1].tolist() or [total]  # the last one is not measured
    for update in saved:
        updates[min(update, total - 1)]["time/checkpoint"] = row["seconds/checkpoint"] / len(saved)
    return RunData(row["cell"], {}, {}, refreshes, updates, [])


def compared(study: str) -> Iterator[Compared]:
    """Yield what was planned and measured for each method of a study but the first."""
    found: dict[tuple[str, str, str], dict[str, list[tuple[float, float]]]] = {}
    for group in cells(study):
        bases = [row for row in group if str(row["axis/method"]).startswith("GRPO")]
        if not bases:
            continue
        base = max(bases, key=lambda row: row["stages"])
        config = config_of(base)
        known = lengths_of(config)
        setting = Setting(config, shape_of(config, None), load_machine("1xCPU"), known)
        measured = measured_by(as_run(base, config), setting)
        for row in group:
            if row is base:
                continue
            axes = [str(v) for k, v in row.items() if k.startswith("axis/") and v is not None]
            key = (", ".join(axes), str(base["axis/method"]), study)
            seconds = planned(replace(setting, config=config_of(row), measured=measured))
            seconds.pop("evaluate")
            parts = found.setdefault(key, {part: [] for part in (*SHOWN, SPEED)})
            parts[SPEED].append((base["seconds/evaluate"], row["seconds/evaluate"]))
            for part in SHOWN[:-1]:
                parts[part].append((seconds[part], row[f"seconds/{part}"]))
            parts["training"].append((sum(seconds.values()), row["training_seconds"]))
    for (name, base_name, _), seconds in found.items():
        yield Compared(study, name, base_name, seconds)


def live(rows: Sequence[Row]) -> list[Compared]:
    """Return the comparisons of runs that were trained for it."""
    found = []
    for row in rows:
        pairs = {part: [(row["planned"][part], row["taken"][part])] for part in SHOWN[:-1]}
        both = (row["planned"], row["taken"])
        whole = [sum(s for part, s in one.items() if part in row["taken"]) for one in both]
        pairs["training"] = [(whole[0], whole[1])]
        each = "one stage" if row["each"] == row["updates"] else f"{row['each']} a refresh"
        name = f"{row['updates']} updates, {each}"
        found.append(Compared(row["run"], name, row["from"], pairs))
    return found


def table(found: Sequence[Compared]) -> str:
    """Return a row for each method: mean seconds over its runs, and how far the plan is off."""
    speed = [SPEED] if any(SPEED in one.seconds for one in found) else []
    head = ["runs", "planned", "from", "runs", *SHOWN, *speed, "within the limits"]
    return markdown(head, [_row(one) for one in found])


def kept(found: Sequence[Compared]) -> str:
    """Return how many rows are within the limits."""
    good = sum(_row(one)[-1] == "yes" for one in found)
    return f"{good} of {len(found)} rows are within the limits."


def _text(found: Sequence[Compared]) -> str:
    return f"{kept(found)}\n\n{table(found)}" if found else "None has been made yet."


def put(file: Path, name: str, text: str, writer: str = "planning.py") -> None:
    """Write `text` between the two comments of a page that bear the name."""
    page = file.read_text()
    begin, end = f"<!-- {name}: written by benchmarks/{writer} -->", f"<!-- {name}: end -->"
    assert page.count(begin) == page.count(end) == 1, name
    before, after = page.split(begin)[0], page.split(end)[1]
    file.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def _row(one: Compared) -> list[str]:
    cells, far = [], []
    whole = mean(taken for _, taken in one.seconds["training"])
    for part in SHOWN:
        planned, taken = (mean(pair[i] for pair in one.seconds[part]) for i in (0, 1))
        off = planned / taken - 1 if taken else 0.0
        cells.append(f"{planned:.3g} for {taken:.3g} s ({off:+.0%})")
        if abs(off) > (WHOLE if part == "training" else PART) and taken > SMALL * whole:
            far.append(part)
    verdict = f"no: {', '.join(far)}" if far else "yes"
    times = [taken / base for base, taken in one.seconds.get(SPEED, ()) if base]
    cells += [f"{median(times):.2f}"] if times else []
    return [one.study, one.name, one.base, str(len(one.seconds["training"])), *cells, verdict]


def main(argv: Sequence[str] | None = None) -> list[Compared]:
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    cli.add_argument("--studies", default=",".join(STUDIES), help="studies, separated by commas")
    cli.add_argument("--output", type=Path, default=RESULTS / "planning", help="the results")
    trained = "train the runs in this directory, and compare them with their plans"
    cli.add_argument("--live", type=Path, metavar="WORK", help=trained)
    only = "train only these runs, by their names in benchmarks/planning_live.py"
    cli.add_argument("--only", nargs="+", default=(), metavar="NAME", help=only)
    python = "the Python interpreter that has vLLM"
    cli.add_argument("--vllm", default=".venv-vllm/bin/python", metavar="PYTHON", help=python)
    cli.add_argument("--page", type=Path, default=ROOT / "docs" / "planning.md", help="the page")
    options = cli.parse_args(argv)
    file = options.output / "live.json"
    if options.live:
        options.output.mkdir(parents=True, exist_ok=True)
        made: list[Row] = []
        for row in rows(options.live, options.vllm, options.only):
            made.append(row)
            file.write_text(json.dumps({"machine": machine(), "runs": made}, indent=1) + "\n")
    trained_for_it = live(stored(file))
    found = [one for study in options.studies.split(",") for one in compared(study)]
    options.output.mkdir(parents=True, exist_ok=True)
    texts = [_text(trained_for_it), _text(found)]
    content = "\n\n## Earlier studies\n\n".join(texts)
    (options.output / "README.md").write_text(f"# Planned and measured seconds\n\n{content}\n")
    for name, text in zip(("runs", "studies"), texts, strict=True):
        put(options.page, name, text)
    print(content)
    return [*trained_for_it, *found]


if __name__ == "__main__":
    main()
