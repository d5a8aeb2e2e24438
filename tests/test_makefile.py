"""The Makefile's own list of its targets."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.runs import ROOT


def test_make_help_lists_every_target_with_its_text():
    """The rows of docs/cost_model.md, $(ROWS) and $(GENERATION), are left out."""
    command = ["make", "--no-print-directory", "help"]  # this may run below `make test`
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [re.split(r"  +", line, maxsplit=1) for line in said.stdout.splitlines()]
    listed = {target: text for targets, text in lines for target in targets.split()}
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)\n", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    targets = {word for word in phony[1].split() if re.match(r"\w", word)}
    assert {"demo", "help", "unit", "clean"} <= targets <= listed.keys()
    assert listed["golden"] == "record the golden trace again"
    assert listed["letters-model"] == "make an embedded model's weights again"


def _python(folder: Path, name: str, script: str) -> Path:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return folder / name


@pytest.mark.parametrize(
    "script",
    [
        None,  # there is no such Python
        'case "$1" in -c) exit 1;; *) mkdir -p .venv/bin && touch .venv/bin/python;; esac',  # old
        'case "$1" in -c) ;; *) mkdir -p .venv/bin && touch .venv/bin/python; exit 1;; esac',  # pip
    ],
)
def test_a_python_that_cannot_do_leaves_no_environment(tmp_path: Path, script: str | None):
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = _python(tmp_path, "python", script) if script else tmp_path / "absent"
    made = subprocess.run(
        ["make", "demo", f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert made.returncode == 2 and not (tmp_path / ".venv").exists()
    assert ("Python 3.11 or newer" in made.stderr) == (script is None or "-c) exit" in script)


def test_the_first_python_that_will_do_is_chosen(tmp_path: Path):
    make = shutil.which("make")
    assert make is not None
    for name, status in {"python3.11": 127, "python3.12": 0, "python3.13": 0, "python3": 1}.items():
        _python(tmp_path, name, f"exit {status}")
    said = subprocess.run(
        [make, "--dry-run", "-f", ROOT / "Makefile", ".venv/bin/python"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "python3.12 -m venv" in said.stdout
