"""`mugrpo plan` as a command: what it prints, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mugrpo.cli import main

SCHEDULE = """
preset = "grpo"
[schedule]
stages = 2
batches_per_stage = 4
growth = 1
problems_per_update = 4
group_size = 4
[rollouts]
max_new_tokens = 40
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "mine.toml"
    made.write_text(SCHEDULE)
    return made


def test_the_table_has_the_configs_schedule_and_those_that_are_asked_for(
    file: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["plan", str(file), "--machine", "8xH100", "--schedules", "1,4,99"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "4 problems x 4 responses = 16 rollouts" in said
    assert "2 refreshes, 8 updates (optimizer steps), 128 rollouts (episodes)" in said
    assert "staleness      0 to 3 updates" in said
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in said.splitlines()
        if "|" in line
    ]
    names = [("4 (the config's)", "2"), ("1", "8"), ("8", "1")]
    assert [(row[0], row[1]) for row in rows[2:]] == names
    assert re.search(r"As configured, \w+ takes most: \d+% of the time\.", said)
    assert "Assumed about the machine, not measured: " in said
