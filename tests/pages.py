"""What tests read from README and docs."""

from __future__ import annotations

import re
import textwrap


def blocks(text: str) -> list[str]:
    """Return the indented blocks of a page, in order, without the indent and the blank lines
    around them."""
    found = re.findall(r"(?:^ {4}.*\n(?:\n(?= {4}))*)+", text, re.MULTILINE)
    return [textwrap.dedent(block) for block in found]
