"""A suite's line in metrics.jsonl, and whether the suite's result says the same."""

from pathlib import Path
from typing import Any

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.metrics import Line
from mugrpo.disk.publishing import read_checked
from mugrpo.disk.run_dir import RunDir
from mugrpo.run.faults import Fault, agrees

SUITE = "suite/"  # begins the kind of a suite's lines


def line_of(result: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a result's line in metrics.jsonl: `accuracy` is its avg@k."""
    names = ("problems", "samples", "temperature", "top_p", "max_new_tokens")
    line = {name: result[name] for name in names}
    for name, (value, low, high) in result["measures"].items():
        name = "accuracy" if name.startswith("avg@") else name
        line |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return {**line, "time/evaluate": result["seconds"]}


def suite_fault(run_dir: RunDir, line: Line) -> Fault | None:
    """Return why a suite's line and its result cannot both be right, or None.

    A line without a result is told by nothing else.
    """
    kind, update, name = line["kind"], line["update"], line["kind"].removeprefix(SUITE)
    if not kind.startswith(SUITE) or Path(name).name != name:
        return None
    file = run_dir.benchmarks / name / f"update-{update:06d}" / "result.json"
    if not file.is_file():
        return None
    try:
        told = line_of(read_checked(file))
    except (RunStopped, LookupError, TypeError, ValueError, AttributeError):
        return Fault("evaluation", file, f"{file} is damaged", (kind, update))
    if agrees(line, told):
        return None
    text = f"{run_dir.metrics} has another result of {name} after update {update:,} than {file}"
    return Fault("line", run_dir.metrics, text, (kind, update))
