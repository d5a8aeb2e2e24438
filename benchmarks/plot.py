"""All ratios as one picture: `python benchmarks/plot.py` draws docs/benchmarks.svg.

Reads every benchmarks/results/*.json but those of tiny runs. A bar is the median of a row's ratios,
its whisker the least and the most, a dark tick the target. Left of 1 a peer is faster; shares of
the floor end at 1.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mugrpo.report.markup import Markup, join, tag
from mugrpo.report.scale import TIMES
from side_by_side import RESULTS, ROOT

WIDTH, ROW, LEFT, RIGHT, TOP = 1040, 30, 540, 150, 46
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:11px;fill:#59636e}"
    ".peer{fill:#2a78d6}.floor{fill:#8b97a5}.target{stroke:#1f2328;stroke-width:2}"
    ".whisker{stroke:#1f2328;stroke-width:1}.one{stroke:#59636e;stroke-dasharray:3 3}"
    ".grid{stroke:#d9dee3}"
)


def ratios(folder: Path) -> list[dict[str, Any]]:
    """The ratios of all rows, those against peers first, the largest first."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    found = [ratio for d in documents if not d.get("tiny") for ratio in d.get("ratios", ())]
    return sorted(found, key=lambda r: (r["kind"] == "floor", -r["median"]))


def drawn(found: Sequence[dict[str, Any]]) -> Markup:
    """The picture; its height follows the number of ratios."""
    height = TOP + ROW * len(found) + 30
    most = max([1.0, *(max(r["max"], r["target"] or 0.0) for r in found)])
    step = max(1, math.ceil(most / 8))
    end = math.ceil(most / step) * step
    scale = (WIDTH - LEFT - RIGHT) / end

    def x(value: float) -> float:
        return LEFT + value * scale

    bottom = TOP + ROW * len(found)
    parts: list[Markup] = [tag("rect", width=WIDTH, height=height, fill="#ffffff")]
    for value in range(0, end + 1, step):
        css = "one" if value == 1 else "grid"
        parts.append(tag("line", class_=css, x1=x(value), x2=x(value), y1=TOP - 6, y2=bottom))
        parts.append(tag("text", f"{value}{TIMES}", class_="small", x=x(value) - 6, y=bottom + 18))
    if step > 1:
        parts.append(tag("line", class_="one", x1=x(1), x2=x(1), y1=TOP - 6, y2=bottom))
    parts.append(tag("text", "How many times as fast; gray: share of the floor", x=16, y=24))
    for row, ratio in enumerate(found):
        parts += bar(ratio, x, TOP + ROW * row)
    return tag(
        "svg",
        tag("style", Markup(STYLE)),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        width=WIDTH,
        height=height,
        role="img",
        aria_label="Ratios of the benchmarks",
    )


def bar(ratio: dict[str, Any], x: Any, top: float) -> list[Markup]:
    """One row: label, bar, whisker, target, figures."""
    middle, value = top + ROW / 2, ratio["median"]
    note = f"{value:.2f} ({ratio['min']:.2f}–{ratio['max']:.2f})"  # noqa: RUF001 - a range
    parts = [
        tag("text", ratio["label"], x=16, y=middle + 4),
        tag(
            "rect",
            class_=ratio["kind"],
            x=x(0),
            y=top + 6,
            width=x(value) - x(0),
            height=ROW - 12,
        ),
        tag("line", class_="whisker", x1=x(ratio["min"]), x2=x(ratio["max"]), y1=middle, y2=middle),
    ]
    if ratio["target"] is not None:
        at = x(ratio["target"])
        parts.append(tag("line", class_="target", x1=at, x2=at, y1=top + 3, y2=top + ROW - 3))
        note += f", target {ratio['target']:g}"
    end = x(max(ratio["max"], ratio["target"] or 0.0)) + 8
    return [*parts, tag("text", note, class_="small", x=end, y=middle + 4)]


def main(given: Sequence[str] | None = None) -> Path:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--results", type=Path, default=RESULTS)
    made.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks.svg")
    options = made.parse_args(given)
    found = ratios(options.results)
    if not found:
        raise SystemExit(f"no results in {options.results}; run a benchmark first")
    options.output.write_text(join([drawn(found), "\n"]))
    return Path(options.output)


if __name__ == "__main__":
    print(main())
