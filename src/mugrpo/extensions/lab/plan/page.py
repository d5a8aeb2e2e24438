"""A plan as a page: the same lines and table, and wall-clock by part as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import altair as alt
from markupsafe import Markup

from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_file
from mugrpo.extensions.lab.plan.schedules import PARTS, Planned
from mugrpo.extensions.lab.plan.setting import Setting
from mugrpo.extensions.lab.plan.text import advice, batch_lines, head, row, size_lines
from mugrpo.report.charts import Picture, inline
from mugrpo.report.figures import document, drawn, part


def write_page(
    file: Path,
    name: str,
    setting: Setting,
    plans: Sequence[Planned],
    own: Sequence[int],
    price: float | None,
) -> Path:
    """Write the page and return its path. Raises UsageError if its name does not end in .html."""
    if file.suffix != ".html":
        raise UsageError(f"--html {file}: name a file that ends in .html")
    title = f"{name} on {setting.machine.name}"
    sources = [[key, source] for key, source in setting.machine.sources.items()]
    lines = "\n".join([*batch_lines(setting), *size_lines(setting)])
    content = [
        part("header", "mugrpo plan", title),
        part(
            "section", "In short", *(part("paragraph", sentence) for sentence in advice(plans, own))
        ),
        part(
            "section", "Schedules", part("table", head(price), [row(p, price, own) for p in plans])
        ),
        part("section", "Wall-clock by part", _bars(plans, own)),
        part("section", "Batches, tokens, disk and memory", part("preformatted", lines)),
        part(
            "section",
            "Where the machine's numbers are from",
            part("table", ["number", "source"], sources),
        ),
    ]
    with publish_file(file) as out:
        out.write(document(f"{title} · mugrpo plan", content).encode())
    return file


def _bars(plans: Sequence[Planned], own: Sequence[int]) -> Markup | None:
    """Return a bar for each colocated plan, cut into parts, in hours."""
    rows = [
        {"plan": row(plan, None, own)[0], "part": part, "hours": plan.parts[part] / 3600}
        for plan in plans
        if plan.pool == "colocated"
        for part in PARTS
        if plan.parts[part]
    ]
    order = list(dict.fromkeys(str(entry["plan"]) for entry in rows))
    bars = (
        alt.Chart(inline(rows))
        .mark_bar()
        .encode(
            x=alt.X("hours:Q", stack="zero"),
            y=alt.Y("plan:N", sort=order, title="updates per refresh"),
            color=alt.Color("part:N", sort=list(PARTS), title=None),
            order=alt.Order("part:N"),
        )
    )
    picture = Picture([bars], width=640, height=36 * len(order))
    return drawn("Hours, colocated pools", "computed, not measured", picture)
