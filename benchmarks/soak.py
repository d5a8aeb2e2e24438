"""Hours of a run whose stages take seconds: does anything grow? `python benchmarks/soak.py`.

A run on the embedded task's problems, with an engine process, two reward workers, a checkpoint at
the end of every stage and evaluations, is watched from outside. Every few seconds are noted, for
each kind of process, the resident memory, open descriptors, threads and number of processes, and
every minute the run's disk use: what it publishes for good (shards, metrics, evaluations), which
grows with every stage, and everything else (checkpoints, logs, what engines are handed). At the end
the run is asked to stop.

Prints by how much each quantity changes in an hour, after the first tenth of the time, with a 95 %
interval, and whether stages became slower. Writes that to benchmarks/results/soak.json, the samples
to soak.parquet beside it, and the figure docs/soak.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

from mugrpo.config.tasks import ChainOptions
from mugrpo.report.axes import Axis
from mugrpo.report.charts import Trace, line_chart
from mugrpo.report.embed import svg_file
from mugrpo.report.figures import run_hue
from mugrpo.tasks.chain import Chain
from side_by_side import RESULTS, ROOT, machine

CONFIG = """
preset = "tapered-grpo"
[task]
name = "dataset"
data = "{folder}/problems.jsonl"
rewards = [{{ name = "regex", pattern = "=([0-9])$" }}, "{folder}/rewards.py:short"]
workers = {{ count = 2 }}
[schedule]
stages = 1000000
batches_per_stage = {updates}
growth = 1.0
problems_per_update = 4
group_size = 4
[engine]
processes = 1
threads = 1
[rollouts]
shard_rollouts = 32
[optimizer]
lr = 1e-6
lr_schedule = "constant"
[evaluation]
every = 40
[checkpoint]
keep = 2
[samples]
every = 0
"""
REWARDS = """
def short(completions, **columns):
    return [0.1 if len(completion) < 40 else 0.0 for completion in completions]
"""
ROLES = {"engines/worker.py": "engine", "mugrpo.rewards.worker": "reward workers"}
PER_ROLE = {"memory": "MiB resident", "descriptors": "descriptors", "threads": "threads"}
PUBLISHED = ("stages", "evaluations", "metrics.jsonl")
WARM_UP = 0.1  # share of the time that is left out of the slopes
BLOCKS = 12  # whose means are nearly independent

Series = dict[str, list[float]]  # by the quantity's name; "hours" has the times


def processes(pid: int) -> dict[str, dict[str, float]]:
    """Return memory in MiB, descriptors, threads and number of processes, by their role."""
    found: dict[str, dict[str, float]] = {}
    for one in (pid, *_descendants(pid)):
        folder = Path(f"/proc/{one}")
        with suppress(OSError, KeyError, IndexError):
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
            other = "run" if one == pid else "other"
            role = next((role for part, role in ROLES.items() if part in command), other)
            lines = (folder / "status").read_text().splitlines()
            words = {line.partition(":")[0]: line.split()[1] for line in lines if line.split()[1:]}
            values = {
                "memory": int(words["VmRSS"]) / 1024,
                "descriptors": len(list((folder / "fd").iterdir())),
                "threads": int(words["Threads"]),
                "processes": 1,
            }
            sums = found.setdefault(role, dict.fromkeys(values, 0.0))
            for name, value in values.items():
                sums[name] += value
    return found


def _descendants(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return [*children, *(one for child in children for one in _descendants(child))]


def disk(run_dir: Path) -> tuple[float, float]:
    """Return the MiB that a run has published for good, and those of everything else."""
    sizes = [0, 0]
    for folder, _, names in os.walk(run_dir):  # which skips what is removed meanwhile
        for path in (Path(folder, name) for name in names):
            other = path.relative_to(run_dir).parts[0] not in PUBLISHED
            with suppress(OSError):
                sizes[other] += path.lstat().st_size
    return sizes[0] / 2**20, sizes[1] / 2**20


def slope(hours: Sequence[float], values: Sequence[float]) -> dict[str, float]:
    """Return the change per hour of the line through the samples, and its 95 % interval.

    Samples that follow each other are alike, so the line goes through the means of a few blocks.
    """
    xs, ys = (
        np.array([block.mean() for block in np.array_split(np.asarray(axis), BLOCKS)])
        for axis in (hours, values)
    )
    line = stats.linregress(xs, ys)
    half = float(np.ptp(ys) and stats.t.ppf(0.975, BLOCKS - 2) * line.stderr)
    return {"per_hour": float(line.slope), "plus_minus": half, "mean": float(ys.mean())}


def slopes(processes: Mapping[str, Series], disk: Series) -> dict[str, dict[str, float]]:
    """Return the slope of each quantity of each role, and of the disk, without the warm-up.

    Quantities with too few samples are left out.
    """
    found = {}
    for role, series in {**processes, "disk": disk}.items():
        first = int(len(series["hours"]) * WARM_UP)
        for name, values in series.items():
            if name not in ("hours", "stages") and len(values) - first >= BLOCKS:
                found[f"{role}: {name}"] = slope(series["hours"][first:], values[first:])
    return found


def watch(process: subprocess.Popen[bytes], run_dir: Path, hours: float, every: float) -> Any:
    """Return the series of each role and of the disk. Raises RuntimeError if the run ends."""
    began = time.monotonic()
    by_role: dict[str, Series] = {}
    space: Series = {"hours": [], "published MiB": [], "other MiB": [], "stages": []}
    disk_every, due = min(60.0, 12 * every), 0.0
    while (passed := time.monotonic() - began) < hours * 3600:
        if process.poll() is not None:
            raise RuntimeError(f"the run ended with status {process.returncode}")
        if (run_dir / "metrics.jsonl").exists():
            _add(by_role, processes(process.pid), passed / 3600)
            if passed >= due:
                due = passed + disk_every
                stages = sum(1 for _ in (run_dir / "stages").glob("*"))
                row = (passed / 3600, *disk(run_dir), stages)
                for column, value in zip(space.values(), row, strict=True):
                    column.append(value)
        time.sleep(every)
    return by_role, space


def _add(by_role: dict[str, Series], sample: Mapping[str, Mapping[str, float]], now: float) -> None:
    for role, values in sample.items():
        for name, value in {"hours": now, **values}.items():
            by_role.setdefault(role, {}).setdefault(name, []).append(round(value, 4))


def stages_per_hour(space: Series) -> list[float]:
    """Return the stages per hour in the first and in the second half of the time."""
    hours, stages = space["hours"], space["stages"]
    ends = (0, len(hours) // 2, len(hours) - 1)
    return [
        round((stages[last] - stages[first]) / (hours[last] - hours[first]), 1)
        for first, last in pairwise(ends)
    ]


def samples(by_role: Mapping[str, Series], space: Series) -> pa.Table:
    """Return a row for each sample of a role or of the disk. Columns of the other kind are null."""
    rows: list[dict[str, Any]] = []
    for role, series in {**by_role, "disk": space}.items():
        rows += (
            {"of": role, **dict(zip(series, values, strict=True))}
            for values in zip(*series.values(), strict=True)
        )
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def drawn(by_role: Mapping[str, Series], space: Series) -> alt.ConcatChart:
    """Return a panel for each quantity: memory, descriptors, threads and disk over hours."""
    panels = []
    for name, unit in PER_ROLE.items():
        lines = [(role, series["hours"], series[name]) for role, series in by_role.items()]
        panels.append((unit, lines))
    names = {"other MiB": "checkpoints, logs, ...", "published MiB": "published for good"}
    lines = [(label, space["hours"], space[name]) for name, label in names.items()]
    panels.append(("MiB on disk", lines))
    charts = []
    for unit, lines in panels:
        traces = [
            Trace(xs, ys, series=label, color=run_hue(hue))
            for hue, (label, xs, ys) in enumerate(lines)
        ]
        size: dict[str, Any] = {"width": 340, "height": 170}
        picture = line_chart(Axis("hours", low=0), Axis(unit, low=0), traces, live=False, **size)
        if picture:
            charts.append(alt.layer(*picture.layers).properties(**size))
    chart = alt.concat(*charts, columns=2)  # nested, panels would share their data: its names recur
    own = dict.fromkeys(("color", "opacity", "strokeDash", "strokeWidth"), "independent")
    shown: alt.ConcatChart = chart.resolve_scale(**own)
    return shown.properties(padding=14)


def shown(document: Mapping[str, Any]) -> str:
    """Return the slopes as a Markdown table."""
    lines = ["| | mean | change per hour |", "| --- | ---: | ---: |"]
    for name, found in document["slopes"].items():
        change = f"{found['per_hour']:+.3g} ± {found['plus_minus']:.2g}"
        lines.append(f"| {name} | {found['mean']:.4g} | {change} |")
    early, late = document["stages_per_hour"]
    head = f"{document['hours']:.2f} hours, {document['stages']} stages "
    head += f"({early:g} an hour in the first half, {late:g} in the second)"
    return "\n".join([head, "", *lines])


def begin(folder: Path, updates: int) -> tuple[subprocess.Popen[bytes], Path]:
    """Start the run in `folder`. Return its process and its directory."""
    rows = [
        {"prompt": p.prompt, "answer": p.answer}
        for p in Chain(ChainOptions(train_problems=2048)).train_problems()
    ]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "soak.toml").write_text(CONFIG.format(folder=folder, updates=updates))
    run_dir = folder / "run"
    words = [sys.executable, "-m", "mugrpo", "train", str(folder / "soak.toml")]
    with open(folder / "log", "wb") as log:
        return subprocess.Popen(
            [*words, "--run-dir", str(run_dir)], stdout=log, stderr=log
        ), run_dir


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("--hours", type=float, default=6.0)
    cli.add_argument("--updates", type=int, default=4, help="of a stage")
    cli.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    cli.add_argument("--work", type=Path, help="an empty folder for the run, which stays")
    cli.add_argument("--output", type=Path, default=RESULTS / "soak.json")
    cli.add_argument("--picture", type=Path, default=ROOT / "docs" / "soak.svg")
    options = cli.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.work or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        process, run_dir = begin(folder, options.updates)
        try:
            by_role, space = watch(process, run_dir, options.hours, options.every)
        except RuntimeError as error:
            raise SystemExit(f"{error}: {(folder / 'log').read_text()[-2000:]}") from None
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait()
    if status != 3:
        raise SystemExit(f"asked to stop, the run ended with status {status} instead of 3")
    document = {
        "name": "soak",
        "hours": round(options.hours, 3),
        "updates_of_a_stage": options.updates,
        "stages": int(space["stages"][-1]),
        "stages_per_hour": stages_per_hour(space),
        "machine": machine(),
        "slopes": slopes(by_role, space),
    }
    print(shown(document))
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    pq.write_table(samples(by_role, space), options.output.with_suffix(".parquet"))
    options.picture.write_text(svg_file(drawn(by_role, space)))
    return document


if __name__ == "__main__":
    main()
