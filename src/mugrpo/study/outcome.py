"""What a finished run comes to: a row of the study's table, the curve of its evaluations in it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mugrpo.config.load import build_config, changes
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_file
from mugrpo.report.costs import phase_seconds, spans, training_clock
from mugrpo.report.read import Line, RunData, number, read_runs
from mugrpo.study.spec import Cell

# Of the updates between two evaluations: how they are put together.
_MEANS = ("kl_behavior", "tv_token", "entropy", "grad_norm", "effective_sample_share")
_GREATEST = "ratio/negative/max"

Row = dict[str, Any]


class Results:
    """The table at `file`: a row a finished cell, which is all that is needed of its run.

    A run that another study beside it has finished is not run again: its row is taken over.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: list[Row] = pq.read_table(file).to_pylist() if file.exists() else []

    def of(self, cell: Cell) -> Row | None:
        """The cell's row; raises UsageError where it was made with other options."""
        for row in self.rows:
            if row["cell"] == cell.name:
                if differing := _differing(row, cell):
                    raise UsageError(
                        f"{self.file} has {cell} made with other options ({', '.join(differing)}); "
                        "move the folder away to run the study anew, or give the value a new name"
                    )
                return row
        return None

    def take_over(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those of `cells` whose run is in the table of another study; they are in this one now."""
        others = sorted(self.file.parent.parent.glob(f"*/{self.file.name}"))
        known = [row for file in others if file != self.file for row in Results(file).rows]
        taken = []
        for cell in cells:
            same = (row for row in known if not _differing(row, cell))
            if row := next(same, None):
                self._put(cell, {name: row[name] for name in row if not name.startswith("axis/")})
                taken.append(cell)
        return taken

    def add(self, cell: Cell, run_dir: Path) -> Row:
        """Put the finished run's row into the table."""
        (run,) = read_runs([run_dir])
        return self._put(cell, {**outcome(run), "config": _written(cell.config)})

    def _put(self, cell: Cell, values: Row) -> Row:
        axes = {f"axis/{axis}": label for axis, label in cell.values.items()}
        row = {**values, "cell": cell.name, **axes, "seed": cell.seed}
        self.rows = [*(r for r in self.rows if r["cell"] != cell.name), row]
        columns = dict.fromkeys(name for one in self.rows for name in one)
        table = pa.table({name: [one.get(name) for one in self.rows] for name in columns})
        with publish_file(self.file) as file:
            pq.write_table(table, file, compression="zstd")
        return row


def _differing(row: Row, cell: Cell) -> list[str]:
    """Options of the cell that its row was made with otherwise.

    One that the row does not name came after it: it had its default.
    """
    stored = json.loads(row["config"])
    with suppress(UsageError):  # an option is gone: then it differs
        stored = json.loads(_written(build_config(stored, "a study's row")))
    return [name for name, *_ in changes(stored, json.loads(_written(cell.config)))]


def _written(config: RunConfig) -> str:
    """The config as JSON, with paths from where the command is run: clones lie in many places."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return text.replace(f'"{os.getcwd()}/', '"')


def outcome(run: RunData) -> Row:
    """The run's numbers, and under "curve" one of them for each evaluation.

    `training_seconds` are those of all phases but evaluation. What other cells shared with this
    one, the rollouts of its first stage, is counted as if it had been made here.
    """
    seconds = phase_seconds(spans(run))
    curve = _curve(run)
    known = [point["accuracy"] for point in curve if point["accuracy"] is not None]
    shares = run.keys("update", suffix="_fraction")
    return {
        "accuracy": known[-1] if known else None,
        "best": max(known, default=None),
        "mean": sum(known) / len(known) if known else None,
        "worst_fall": _worst_fall(known),
        "training_seconds": sum(s for phase, s in seconds.items() if phase != "evaluate"),
        **{f"seconds/{phase}": spent for phase, spent in seconds.items()},
        "updates": len(run.updates),
        "stages": len(run.refreshes),
        "rollouts": sum(line["rollouts"] for line in run.refreshes),
        "skipped": sum(line["skipped"] for line in run.updates),
        "kl_behavior": _greatest(run.updates, "kl_behavior"),
        "tv_token": _greatest(run.updates, "tv_token"),
        _GREATEST: _greatest(run.updates, _GREATEST),
        **{key: _mean(run.updates, key) for key in shares},
        "curve": curve,
    }


def rows_of(rows: Sequence[Row], values: dict[str, str]) -> list[Row]:
    """Those with these values of axes."""
    return [row for row in rows if all(row[f"axis/{a}"] == v for a, v in values.items())]


def quantity(row: Row, name: str) -> float | None:
    """A number of a row: one of its columns, `updates_to_LEVEL` or `seconds_to_LEVEL`.

    These count to the first evaluation whose accuracy is LEVEL or more; None where none is.
    """
    of, between, level = name.partition("_to_")
    if not between:
        value: float | None = row.get(name)
        return value
    points = (p for p in row["curve"] if (p["accuracy"] or 0.0) >= float(level))
    return next((float(p["update" if of == "updates" else of]) for p in points), None)


def _curve(run: RunData) -> list[Row]:
    """At each evaluation: accuracy, seconds of training so far, and the updates since the last."""
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


def _worst_fall(accuracies: Sequence[float]) -> float | None:
    """The most that accuracy has lost from an evaluation to a later one."""
    best, worst = 0.0, 0.0
    for accuracy in accuracies:
        best = max(best, accuracy)
        worst = max(worst, best - accuracy)
    return worst if accuracies else None


def _mean(lines: Sequence[Line], key: str) -> float | None:
    known = [value for line in lines if (value := number(line, key)) is not None]
    return sum(known) / len(known) if known else None


def _greatest(lines: Sequence[Line], key: str) -> float | None:
    return max((value for line in lines if (value := number(line, key)) is not None), default=None)
