"""Plans against measured runs: `python benchmarks/planning.py`. Needs no GPU and trains nothing.

The cells of the studies were measured run by run, with seconds by part. In each group of cells that
differ only in their method, the run of GRPO with the most refreshes plays the run that one has:
`mugrpo plan RUN` is computed from its seconds. Every other run of the group, with the same seed, is
then planned and compared with what it took. No planned number has seen the run that it is compared
with. Response lengths were not kept with the cells, so those of the task stand for them.

Writes benchmarks/results/planning/README.md with every comparison, misses included.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.report.read import RunData
from mugrpo.tools.benchmark.tables import markdown
from mugrpo.tools.plan.calibrate import measured_by
from mugrpo.tools.plan.lengths import Lengths, Seen, assumed
from mugrpo.tools.plan.machine import load_machine
from mugrpo.tools.plan.schedules import Planner
from mugrpo.tools.plan.setting import Setting, as_configured, shape_of
from side_by_side import RESULTS, ROOT

STUDIES = (
    *("wall_clock", "few_stages", "few_stages_letters", "four_stages_smollm2", "refresh_cost"),
)
SHOWN = ("refresh", "generate", "optimize", "training")
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
    updates[-1]["time/checkpoint"] = row["seconds/checkpoint"]
    return RunData(row["cell"], {}, {}, refreshes, updates, [])


def compared(study: str) -> Iterator[Compared]:
    """Yield what was planned and measured for each method of a study but the first."""
    found: dict[tuple[str, str, str], dict[str, list[tuple[float, float]]]] = {}
    for rows in cells(study):
        bases = [row for row in rows if str(row["axis/method"]).startswith("GRPO")]
        if not bases:
            continue
        base = max(bases, key=lambda row: row["stages"])
        config = config_of(base)
        known = lengths_of(config)
        setting = Setting(config, shape_of(config, None), load_machine("1xCPU"), known)
        measured = measured_by(as_run(base, config), setting)
        for row in rows:
            if row is base:
                continue
            axes = [str(v) for k, v in row.items() if k.startswith("axis/") and v is not None]
            key = (", ".join(axes), str(base["axis/method"]), study)
            planned = _planned(replace(setting, config=config_of(row), measured=measured))
            parts = found.setdefault(key, {part: [] for part in SHOWN})
            for part in SHOWN[:-1]:
                parts[part].append((planned[part], row[f"seconds/{part}"]))
            parts["training"].append((sum(planned.values()), row["training_seconds"]))
    for (name, base_name, _), seconds in found.items():
        yield Compared(study, name, base_name, seconds)


def _planned(setting: Setting) -> dict[str, float]:
    stages = as_configured(setting.config.schedule)
    parts = Planner(setting).planned(stages, "colocated", 1, 1).parts
    return {part: seconds for part, seconds in parts.items() if part != "evaluate"}


def table(found: Sequence[Compared]) -> str:
    """Return a row for each method: mean seconds over its runs, and how far the plan is off."""
    head = ["study", "runs planned", "from", "runs", *SHOWN, "within the limits"]
    return markdown(head, [_row(one) for one in found])


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
    return [one.study, one.name, one.base, str(len(one.seconds["training"])), *cells, verdict]


def main(argv: Sequence[str] | None = None) -> list[Compared]:
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    cli.add_argument("--studies", default=",".join(STUDIES), help="studies, separated by commas")
    cli.add_argument("--output", type=Path, default=RESULTS / "planning", help="the results")
    options = cli.parse_args(argv)
    found = [one for study in options.studies.split(",") for one in compared(study)]
    options.output.mkdir(parents=True, exist_ok=True)
    text = table(found)
    (options.output / "README.md").write_text(f"# Planned and measured seconds\n\n{text}\n")
    print(text)
    return found


if __name__ == "__main__":
    main()
