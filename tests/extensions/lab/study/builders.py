"""A study's file and the lines of runs, for tests that work out its numbers by hand."""

from pathlib import Path
from typing import Any

from mugrpo.report.read import RunData

STUDY = """
title = "Two methods"
question = "Which?"
base = "{base}"
seeds = [0, 1, 2]
columns = ["accuracy", "training_seconds", "updates_to_0.9"]
baseline = {{ method = "plain" }}
findings = "None."
figures = [
  {{ name = "curves", title = "Accuracy <over> updates", kind = "curves", lines = "method" }},
  {{ name = "final", title = "Accuracy", kind = "values", lines = "method" }},
]
[axes.method]
plain = {{ }}
other = {{ optimizer.lr = 0.5 }}
"""


def study_file(folder: Path) -> Path:
    """Write a study of two methods with three seeds each, and return its file."""
    (folder / "base.toml").write_text("[schedule]\nstages = 2\n")
    study = folder / "study.toml"
    study.write_text(STUDY.format(base=folder / "base.toml"))
    return study


def update(number: int, **values: Any) -> dict[str, Any]:
    times = {"time/update": 2.0, "time/read": 0.5, "time/checkpoint": 0.0}
    given = {"kl_behavior": 0.1 * number, "vetoed_fraction": 0.01 * number, **values}
    return {"kind": "update", "update": number, "skipped": 0, **times, **given}


def evaluation(number: int, accuracy: float | None) -> dict[str, Any]:
    return {"kind": "evaluation", "update": number, "accuracy": accuracy, "time/evaluate": 100.0}


def refresh(number: int) -> dict[str, Any]:
    times = {"time/refresh": 1.0, "time/generate": 3.0, "time/score": 1.0}
    return {"kind": "refresh", "update": number, "rollouts": 32, **times}


def run_data(**lines: list[dict[str, Any]]) -> RunData:
    kinds = {"refreshes": "refresh", "updates": "update", "evaluations": "evaluation"}
    return RunData("run", {}, {}, {kinds[name]: of for name, of in lines.items()})
