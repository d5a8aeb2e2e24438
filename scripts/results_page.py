"""Write the tables of docs/results.md and README.md from the studies' rows.

claims.toml has the claims, the machines, and the arms of README's table. A claim with fewer than
two seeds is undecided.
"""

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from mugrpo.extensions.lab.study.intervals import estimate, geometric
from mugrpo.extensions.lab.study.outcome import Results, Row, rows_of
from mugrpo.report.readable import MINUS, plain

ROOT = Path(__file__).parents[1]
RESULTS, README = ROOT / "docs" / "results.md", ROOT / "README.md"
CLAIMS = ROOT / "scripts" / "claims.toml"
BEGIN, END = "<!-- {}: scripts/results_page.py -->\n\n", "<!-- end of {} -->"
MARGIN = 0.02  # of accuracies that count as near
LEAST = 1.21  # times as fast, of the Mu-GRPO paper's five models
COLLAPSED = 0.5  # of a run's best accuracy
PHASES = ("generate", "score", "optimize", "refresh", "refresh/canary", "checkpoint", "evaluate")
HEAD = "| the claim | task | model | seeds | here | verdict | study |\n| --- |" + " --- |" * 6


def pages() -> dict[Path, str]:
    """Return both pages with tables of the present rows."""
    given = tomllib.loads(CLAIMS.read_text())
    claims = [HEAD, *(line for claim in given["claim"] for line in _lines(claim))]
    tables = {
        RESULTS: {"claims": claims, "seconds": _seconds(given["machine"])},
        README: {"summary": _summary(given["summary"])},
    }
    return {file: _filled(file.read_text(), made) for file, made in tables.items()}


def _filled(text: str, tables: dict[str, list[str]]) -> str:
    for name, lines in tables.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, found, rest = text.partition(begin)
        if found:
            text = before + begin + "\n".join(lines) + "\n\n" + end + rest.partition(end)[2]
    return text


def _summary(given: dict[str, Any]) -> list[str]:
    """Return a table of a study's arms: accuracy over seeds, time over the first's, refreshes."""
    rows = Results(_folder(given["study"]) / "cells.parquet").rows
    first = {row["seed"]: row for row in rows_of(rows, {"arm": next(iter(given["arms"]))})}
    head = ["method", "accuracy", "pass@2", "time", "refreshes"]
    body = [head, ["---"] * len(head)]
    for arm, name in given["arms"].items():
        if not (of := rows_of(rows, {"arm": arm})):
            continue
        shares = [_share([row[key] for row in of]) for key in ("accuracy", "pass@2")]
        timed = first.keys() & given.get("timed", first.keys())
        pairs = [(row, first[row["seed"]]) for row in of if row["seed"] in timed]
        spent = geometric([a["training_seconds"] / b["training_seconds"] for a, b in pairs])
        time = f"{spent[0]:.2f}" if spent else ""
        body.append([name, *shares, time, _of(of, "stages")])
    return [f"| {' | '.join(cells)} |" for cells in body]


def _share(values: list[float]) -> str:
    found = estimate(values)
    assert found
    return f"{found.mean:.3f}" + (f" ± {found.half_width:.3f}" if found.half_width else "")


def _seconds(machines: list[dict[str, Any]]) -> list[str]:
    """Return a table of the seconds of each phase, means over seeds: two arms a machine."""
    columns = []
    for machine in machines:
        rows = Results(_folder(machine["study"]) / "cells.parquet").rows
        for arm in machine["arms"]:
            shown = machine.get("timed", [row["seed"] for row in rows])
            if of := [row for row in rows_of(rows, {"arm": arm}) if row["seed"] in shown]:
                columns.append((f"{machine['name']}: {arm}", of))
    body = [["seconds of", *(name for name, _ in columns)], ["---"] * (len(columns) + 1)]
    body.append(["(seeds, refreshes)", *(f"{len(of)}, {_of(of, 'stages')}" for _, of in columns)])
    body += [[name, *(_of(of, f"seconds/{name}") for _, of in columns)] for name in PHASES]
    body.append(["training", *(_of(of, "training_seconds") for _, of in columns)])
    return [f"| {' | '.join(cells)} |" for cells in body]


def _of(rows: list[Row], name: str) -> str:
    return plain(fmean(row[name] or 0.0 for row in rows))


def _lines(claim: dict[str, Any]) -> Iterator[str]:
    says = f"{claim['says']} ({claim['paper']})"
    for case in claim["cases"]:
        if not (rows := Results(_folder(case["study"]) / "cells.parquet").rows):
            continue
        seeds, here, verdict = checked(rows, case, claim["expects"])
        if not seeds:
            continue
        model = case.get("model", "0.5 M, embedded")
        link = f"[{case['study']}](../studies/results/{case['study']}/README.md)"
        cells = (says, case["task"], model, str(seeds), here, verdict, link)
        yield f"| {' | '.join(cells)} |"
        says = ""


def checked(rows: list[Row], case: dict[str, Any], expects: str) -> tuple[int, str, str]:
    """Return the number of seeds, what was seen and the verdict on a case of a claim.

    `expects` is described in claims.toml. Intervals are 95 %, over seeds.
    """
    arm = {row["seed"]: row for row in rows_of(rows, case["arm"])}
    if expects in ("collapse", "none"):
        fell = sum(row["accuracy"] < COLLAPSED * row["best"] for row in arm.values())
        agrees, differs = (len(arm), 0) if expects == "collapse" else (0, len(arm))
        verdict = {agrees: "agrees", differs: "does not"}.get(fell, "undecided")
        return len(arm), f"{fell} of {len(arm)} collapse", _of_seeds(len(arm), verdict)
    other = {row["seed"]: row for row in rows_of(rows, case["arm"] | case["other"])}
    pairs = [(arm[seed], other[seed]) for seed in sorted(arm.keys() & other.keys())]
    if expects in ("faster", "slower"):
        pairs = [pair for pair in pairs if pair[0]["seed"] in case.get("timed", other)]
        times = [b["training_seconds"] / a["training_seconds"] for a, b in pairs]
        mean, low, high, _ = geometric(times) or (math.nan,) * 4
        around = f" ({low:.2f} to {high:.2f})" if len(pairs) > 1 else ""
        agrees, differs = (
            (low >= LEAST, high < LEAST) if expects == "faster" else (high < 1, low >= 1)
        )
        return len(pairs), f"{mean:.2f} times as fast{around}", _verdict(pairs, agrees, differs)
    found = estimate([a["accuracy"] - b["accuracy"] for a, b in pairs])
    if found is None:
        return 0, "", ""
    half = found.half_width or 0.0
    low, high = found.mean - half, found.mean + half
    agrees, differs = (
        (high < 0, low >= 0) if expects == "below" else (low >= -MARGIN, high < -MARGIN)
    )
    here = f"{found.mean:+.3f}".replace("-", MINUS) + (f" ± {half:.3f}" if len(pairs) > 1 else "")
    return len(pairs), here, _verdict(pairs, agrees, differs)


def _verdict(pairs: list[Any], agrees: bool, differs: bool) -> str:
    return _of_seeds(len(pairs), "agrees" if agrees else "does not" if differs else "undecided")


def _of_seeds(count: int, verdict: str) -> str:
    return verdict if count > 1 else "undecided"


def _folder(study: str) -> Path:
    return ROOT / "studies" / "results" / study


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text)
