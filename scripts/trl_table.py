"""Write the table of TRL's fields into docs/trl.md: python scripts/trl_table.py"""

from __future__ import annotations

from pathlib import Path

from mugrpo.trl.fields import table

PAGE = Path(__file__).parents[1] / "docs" / "trl.md"
HEADING = "| field | default in TRL |"

if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().partition(HEADING)[0] + table() + "\n")
