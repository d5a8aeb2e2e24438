"""Draw docs/examples.svg: accuracy over updates of runs, a panel each.

`make example-pictures` trains the examples and calls this with their directories.
"""

import sys
from pathlib import Path

import altair as alt

from mugrpo.disk.metrics import read_metrics
from mugrpo.report.charts import color, inline, svg_file

PICTURE = Path(__file__).parents[1] / "docs" / "examples.svg"
_KEYS = ("update", "accuracy", "accuracy_low", "accuracy_high")


def main(runs: list[str]) -> None:
    rows = [
        {key: line[key] for key in _KEYS} | {"run": Path(run).name.replace("_", " ")}
        for run in runs
        for line in read_metrics(Path(run) / "metrics.jsonl")
        if line["kind"] == "evaluation"
    ]
    unit = alt.Scale(domain=[0, 1])
    line = alt.Chart().mark_line(point=True, color=color("run-0"))
    line = line.encode(
        alt.X("update:Q", title="updates"), alt.Y("accuracy:Q", title="accuracy", scale=unit)
    )
    band = alt.Chart().mark_area(opacity=0.17, color=color("run-0"))
    band = band.encode(
        x="update:Q", y=alt.Y("accuracy_low:Q", title="accuracy"), y2="accuracy_high:Q"
    )
    head = alt.Header(title=None, labelColor=color("ink"))
    size = {"width": 210, "height": 110}
    panels = (
        alt.layer(band, line, data=inline(rows))
        .properties(**size)
        .facet(alt.Facet("run:N", header=head, sort=[row["run"] for row in rows]), columns=3)
    )
    PICTURE.write_text(svg_file(panels.resolve_scale(x="independent")))


if __name__ == "__main__":
    main(sys.argv[1:])
