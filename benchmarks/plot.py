"""All ratios in one chart: `python benchmarks/plot.py` draws docs/benchmarks.svg.

Reads every benchmarks/results/*.json except those of tiny runs and comparisons with ourselves. A
bar shows the median of a ratio, its whisker the least and the greatest value, and a dark tick the
target. If a bar ends left of 1, the peer is faster. A share of the floor cannot exceed 1.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt

from mugrpo.report.charts import color, svg_file
from side_by_side import RESULTS, ROOT

WIDTH, ROW = 380, 30
HUES = {"peer": color("run-0"), "floor": color("axis")}


def ratios(folder: Path) -> list[dict[str, Any]]:
    """Return the ratios of all rows: first to peers, then to the floor, each largest first."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    entries = [ratio for d in documents if not d.get("tiny") for ratio in d.get("ratios", ())]
    entries = [ratio for ratio in entries if ratio["kind"] in HUES]
    return sorted(entries, key=lambda r: (r["kind"] == "floor", -r["median"]))


def drawn(entries: Sequence[dict[str, Any]]) -> alt.LayerChart | alt.FacetChart:
    """Return a chart of the ratios, whose height grows with their number."""
    rows = [
        {
            **{key: ratio[key] for key in ("label", "median", "min", "max", "target")},
            "hue": HUES[ratio["kind"]],
            "end": max(ratio["max"], ratio["target"] or 0.0),
            "note": note(ratio),
        }
        for ratio in entries
    ]
    most = max([1.0, *(row["end"] for row in rows)])
    step = max(1, math.ceil(most / 8))
    end = math.ceil(most / step) * step
    y = alt.Y(
        "label:N",
        sort=None,
        axis=alt.Axis(
            title=None, grid=False, labelColor=color("ink"), labelFontSize=13, labelLimit=560
        ),
    )

    def x(name: str) -> alt.X:
        ticks = alt.Axis(title=None, grid=True, values=[*range(0, end + 1, step)])
        ticks.labelExpr = "datum.label + '\u00d7'"
        return alt.X(f"{name}:Q", scale=alt.Scale(domain=[0, end]), axis=ticks)

    base = alt.Chart(alt.InlineData(values=list(rows))).encode(y)
    one = alt.Chart(alt.InlineData(values=[{"one": 1}])).mark_rule(
        color=color("muted"), strokeDash=[3, 3]
    )
    target = base.transform_filter("datum.target !== null").mark_tick(thickness=2, size=ROW - 6)
    text = base.mark_text(align="left", dx=8, color=color("muted"))
    chart = alt.layer(
        base.mark_bar(size=ROW - 12).encode(x("median"), color=alt.Color("hue:N", scale=None)),
        base.mark_rule(color=color("ink")).encode(x("min"), x2="max:Q"),
        target.encode(x("target"), color=alt.ColorValue(color("ink"))),
        text.encode(x("end"), text="note:N"),
        one.encode(x("one")),
    )
    title = "How many times as fast; gray: share of the floor"
    return chart.properties(width=WIDTH, height=ROW * len(rows), title=title, padding=14)


def note(ratio: dict[str, Any]) -> str:
    """Return the text beside a bar."""
    words = f"{ratio['median']:.2f} ({ratio['min']:.2f}–{ratio['max']:.2f})"  # noqa: RUF001 - a range
    return words if ratio["target"] is None else f"{words}, target {ratio['target']:g}"


def main(argv: Sequence[str] | None = None) -> Path:
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("--results", type=Path, default=RESULTS)
    cli.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks.svg")
    options = cli.parse_args(argv)
    entries = ratios(options.results)
    if not entries:
        raise SystemExit(f"no results in {options.results}; run a benchmark first")
    options.output.write_text(svg_file(drawn(entries)))
    return Path(options.output)


if __name__ == "__main__":
    print(main())
