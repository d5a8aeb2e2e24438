"""The hooks of .pre-commit-config.yaml are what `make lint` runs."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_the_hooks_run_the_commands_of_make_lint():
    makefile = (ROOT / "Makefile").read_text()
    (recipe,) = re.findall(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    (folder,) = re.findall(r"^BIN := (.*)$", makefile, re.MULTILINE)
    commands = recipe.replace("$(BIN)", folder).split("\n\t")
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"  # nothing to download
    assert [hook["entry"] for hook in local["hooks"]] == [c.strip() for c in commands]
    for hook in local["hooks"]:  # the commands check the whole tree, in make's environment
        assert hook["language"] == "system" and hook["pass_filenames"] is False
