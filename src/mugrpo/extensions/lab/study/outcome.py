"""The result of a finished run: a row of the study's table, with the curve of its evaluations."""

import json
import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mugrpo.config.load import changes, with_newer_options
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.metrics import UPDATE, Line, number
from mugrpo.disk.publishing import publish_file
from mugrpo.disk.run_dir import RunDir
from mugrpo.extensions.lab.study.spec import Cell
from mugrpo.report.read import (
    RunData,
    phase_seconds,
    read_runs,
    refresh_parts,
    training_clock,
    training_seconds,
)
from mugrpo.rollouts.evaluation import shares_of_problems

# The updates between two evaluations are summarized by these means and this maximum.
_GREATEST = "ratio/negative/max"
_NEGATIVE = "ratio/negative/mean"  # in the Mu-GRPO paper it falls to 0.1 to 0.4 in a collapse
_MEANS = ("kl_behavior", "tv_token", "entropy", "grad_norm", "effective_sample_share", _NEGATIVE)

BY_PROBLEM = "accuracy_by_problem"  # the last evaluation's, NaN if not known

Row = dict[str, Any]


class Results:
    """The table at `file`: a row for each finished cell, with all that a study needs of its run."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: list[Row] = pq.read_table(file).to_pylist() if file.exists() else []

    def of(self, cell: Cell) -> Row | None:
        """Return the cell's row, or None. Raises UsageError if it was made with other options."""
        for row in self.rows:
            if row["cell"] == cell.name:
                if differing := _differing(row, cell):
                    raise UsageError(
                        f"{self.file} has {cell} made with other options ({', '.join(differing)}); "
                        "move the folder away to run the study again, or give the value a new name"
                    )
                return row
        return None

    def add(self, cell: Cell, run_dir: Path) -> Row:
        """Put the finished run's row into the table, and return it.

        Raises RunStopped if something is wrong with the run's files.
        """
        (run,) = read_runs([run_dir])
        if run.faults:
            raise RunStopped(run.faults[0])
        config = _relative(cell.config.model_dump(mode="json"))
        values = {**outcome(run), **_alignment(run_dir), "config": config}
        last = run.evaluations[-1]["update"] if run.evaluations else 0
        if (measured := RunDir(run_dir).evaluation(last)).exists():
            values[BY_PROBLEM] = list(shares_of_problems(measured).values())
        axes = {f"axis/{axis}": label for axis, label in cell.values.items()}
        row = {**values, "cell": cell.name, **axes, "seed": cell.seed, "threads": cell.threads}
        self.rows = [*(r for r in self.rows if r["cell"] != cell.name), row]
        columns = dict.fromkeys(name for one in self.rows for name in one)
        table = pa.table({name: [one.get(name) for one in self.rows] for name in columns})
        with publish_file(self.file) as file:
            pq.write_table(table, file, compression="zstd")
        return row


def _differing(row: Row, cell: Cell) -> list[str]:
    """Return the options of the cell that differ from those of its row, threads among them."""
    # With today's options. If one of its own no longer exists, it differs from every cell's.
    made = _relative(with_newer_options(json.loads(row["config"])))
    wanted = _relative(cell.config.model_dump(mode="json"))
    options = [name for name, *_ in changes(json.loads(made), json.loads(wanted))]
    threads = row.get("threads") or 1  # older rows do not tell
    return [*options, *(["threads"] if threads != cell.threads else [])]


def _relative(config: dict[str, Any]) -> str:
    """Return the config as JSON, with paths relative to the working directory (as in any clone)."""
    text = json.dumps(config, sort_keys=True)
    return text.replace(f'"{os.getcwd()}/', '"')


def outcome(run: RunData) -> Row:
    """Return the run's numbers, and in "curve" the numbers at each evaluation.

    `training_seconds` are the seconds of all phases but evaluation.
    """
    seconds = phase_seconds(run)
    curve = _curve(run)
    known = [point["accuracy"] for point in curve if point["accuracy"] is not None]
    falls = zip(accumulate(known, max), known, strict=True)
    shares = run.keys("update", suffix="_fraction")
    ends = {"": run.evaluations[-1], "start/": run.evaluations[0]} if run.evaluations else {}
    return {
        "accuracy": known[-1] if known else None,
        "start/accuracy": known[0] if known else None,
        "best": max(known, default=None),
        **{f"{end}{name}": x for end, line in ends.items() for name, x in _of_an_end(line).items()},
        "mean": sum(known) / len(known) if known else None,
        "worst_fall": max((best - now for best, now in falls), default=None),  # to a later one
        "training_seconds": training_seconds(run),
        **{f"seconds/{phase}": spent for phase, spent in seconds.items()},
        **{f"seconds/refresh/{part}": s for part, s in refresh_parts(run.refreshes).items()},
        "updates": run.count(UPDATE),
        "stages": run.count("refresh"),
        "rollouts": round(sum(number(line, "rollouts") or 0 for line in run.refreshes)),
        "skipped": round(sum(number(line, "skipped") or 0 for line in run.updates)),
        "kl_behavior": _greatest(run.updates, "kl_behavior"),
        "tv_token": _greatest(run.updates, "tv_token"),
        _GREATEST: _greatest(run.updates, _GREATEST),
        **{key: _mean(run.updates, key) for key in (*shares, _NEGATIVE)},
        "curve": curve,
    }


def _of_an_end(line: Line) -> Row:
    """Return the numbers of the first or last evaluation that the others do not have."""
    names = {
        "greedy": "greedy/accuracy",
        "entropy": "entropy",
        "truncated_share": "truncated_share",
    }
    names |= {name: name for name in line if name.startswith(("pass@", "accuracy/"))}
    return {name: number(line, key) for name, key in names.items() if key in line}


def rows_of(rows: Sequence[Row], values: dict[str, str]) -> list[Row]:
    """Return the rows with these values (axis -> value)."""
    return [row for row in rows if all(row[f"axis/{a}"] == v for a, v in values.items())]


def quantity(row: Row, name: str) -> float | None:
    """Return a number of a row: one of its columns, `updates_to_LEVEL` or `seconds_to_LEVEL`.

    The latter count up to the first evaluation whose accuracy is at least LEVEL. They are None if
    there is no such evaluation.
    """
    of, between, level = name.partition("_to_")
    if not between:
        value: float | None = row.get(name)
        return value
    points = (p for p in row["curve"] if (p["accuracy"] or 0.0) >= float(level))
    return next((float(p["update" if of == "updates" else of]) for p in points), None)


def _curve(run: RunData) -> list[Row]:
    """Return a point per evaluation: its numbers, and those of the updates since the last one."""
    clock = training_clock(run)
    shares = run.keys("update", suffix="_fraction")
    points, before = [], -1
    for line in run.evaluations:
        update = line["update"]
        since = [u for u in run.updates if before < u["update"] <= update]
        points.append(
            {
                "update": update,
                "seconds": clock["evaluation", update],
                "accuracy": number(line, "accuracy"),
                **{key: _mean(since, key) for key in (*_MEANS, *shares)},
                _GREATEST: _greatest(since, _GREATEST),
            }
        )
        before = update
    return points


def _alignment(run_dir: Path) -> Row:
    """Return the cosines at the last checkpoint within the first stage, if they were measured."""
    file = run_dir / "alignment" / "stage-000" / "alignment.json"
    if not file.exists():
        return {}
    row = max(json.loads(file.read_text()), key=lambda row: row["staleness"])
    signs = {f"alignment/{name}": row[name] for name in ("positive", "negative", "fresh")}
    return {"alignment": row["cosine"], **signs}


def _mean(lines: Sequence[Line], key: str) -> float | None:
    known = [value for line in lines if (value := number(line, key)) is not None]
    return sum(known) / len(known) if known else None


def _greatest(lines: Sequence[Line], key: str) -> float | None:
    return max((value for line in lines if (value := number(line, key)) is not None), default=None)
