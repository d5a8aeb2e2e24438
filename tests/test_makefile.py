"""The Makefile's own list of its targets."""

from __future__ import annotations

import re
import subprocess

from tests.runs import ROOT


def test_make_help_lists_every_target_with_its_text():
    """The rows of docs/cost_model.md, $(ROWS) and $(SCHEDULES), are left out."""
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
