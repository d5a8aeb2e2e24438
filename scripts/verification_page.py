"""Write the tables of docs/verification.md: python scripts/verification_page.py"""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mugrpo.rewards.math.notation import RULES, SAME

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "verification.md"
CASES = ROOT / "tests" / "rewards" / "verification.toml"
HEADING = "## One notation\n"


def page(before: str) -> str:
    """Return the page, given it as it is: what stands before the tables stays."""
    parts = [before.partition(HEADING)[0] + HEADING, _notation()]
    for section in tomllib.loads(CASES.read_text())["section"]:
        text = textwrap.fill(section["text"], 118, break_long_words=False, break_on_hyphens=False)
        parts.append(
            "\n\n".join([f"## {section['title']}", *filter(None, [text]), _cases(section["rows"])])
        )
    return "\n".join(parts)


def _notation() -> str:
    same = [(_code([latex]), _code(ways.split())) for latex, ways in SAME.items()]
    rows = [(_code([rule.written]), _code([rule.becomes])) for rule in RULES]
    return (
        "Before anything is compared, an answer is written in one notation. These signs have one "
        "name\n(`src/mugrpo/rewards/math/notation.py`):\n\n"
        + _table(("read as", "written"), same)
        + "\nThen come all rules, in their order:\n\n"
        + _table(("written", "read as"), rows)
    )


def _cases(rows: list[dict[str, Any]]) -> str:
    table = []
    for row in rows:
        sides = (_code(row.get(side, [])) for side in ("right", "wrong"))
        table.append((_code([row["reference"]]), *sides))
    return _table(("reference", "right", "wrong"), table)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _code(answers: list[str]) -> str:
    return ", ".join(f"`{_shown(answer)}`" for answer in answers)


def _shown(answer: str) -> str:
    return answer.strip().replace("|", "\\|").replace("`", "'").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
