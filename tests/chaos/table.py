"""Results of trials: kept as JSON lines, and shown as a Markdown table."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.faults import FAULTS
from tests.chaos.kinds import KINDS
from tests.chaos.trial import LIMIT, Outcome


def read(path: Path) -> list[Outcome]:
    """Return the outcomes in a results file. A last line that a kill has cut short is left out."""
    text = path.read_text() if path.exists() else ""
    return [Outcome(**json.loads(line)) for line in text.split("\n")[:-1]]


def append(path: Path, outcome: Outcome) -> None:
    """Add an outcome to a results file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = path.read_bytes() if path.exists() else b""
    with open(path, "ab") as file:
        file.truncate(kept.rfind(b"\n") + 1)
        file.write(json.dumps(outcome.record()).encode() + b"\n")


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a Markdown table with a row for each kind of run and a column for each fault."""
    used = Counter(name for outcome in outcomes for name in outcome.struck)
    faults = [name for name in FAULTS if used[name]]
    head = ["run", "trials", *faults, "differences", "leftovers", "other ends", "ranks gone after"]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for kind in KINDS:
        if of_kind := [outcome for outcome in outcomes if outcome.kind == kind]:
            rows.append(_row(kind, of_kind, faults))
    rows.append(_row("**all**", outcomes, faults))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _row(name: str, outcomes: Sequence[Outcome], faults: Sequence[str]) -> list[str]:
    struck = Counter(fault for outcome in outcomes for fault in outcome.struck)
    found = [sum(bool(getattr(o, what)) for o in outcomes) for what in _FINDINGS]
    gone = [seconds for outcome in outcomes for seconds in outcome.ranks_gone]
    slowest = f"{max(gone):.2f} s" if gone else ""
    cells = [len(outcomes), *(struck[fault] or "" for fault in faults), *found]
    return [name, *map(str, cells), slowest]


_FINDINGS = ("differences", "leftovers", "ends")


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return one sentence: how many faults struck, and in how many trials something was wrong."""
    seeds = ", ".join(map(str, sorted({outcome.seed for outcome in outcomes})))
    struck = sum(len(outcome.struck) for outcome in outcomes)
    found = [sum(bool(getattr(o, what)) for o in outcomes) for what in (*_FINDINGS, "late")]
    return (
        f"{struck:,} faults in {len(outcomes):,} trials (seed {seeds}): {found[0]} trials with "
        f"differences, {found[1]} with leftovers, {found[2]} with an end that no fault explains, "
        f"{found[3]} with ranks that stayed for more than {LIMIT:g} s"
    )
