"""Where few stages save time: `python benchmarks/staging_map.py` draws docs/staging_map.svg.

A model of 7 billion parameters makes 4,096 updates of 64 problems x 8 responses. Each cell is the
planned wall-clock of four stages over that of GRPO with a refresh every four updates, on the same
colocated H200s: computed, not measured (docs/planning.md). Below 1, staging is faster. Lengths are
lognormal; sigma is the weight of their tail.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt

from mugrpo.config.load import load_config
from mugrpo.report.charts import color, inline
from mugrpo.report.embed import svg_file
from mugrpo.tools.plan.counts import Shape
from mugrpo.tools.plan.lengths import assumed
from mugrpo.tools.plan.machine import load_machine
from mugrpo.tools.plan.schedules import Planned, Planner
from mugrpo.tools.plan.setting import Setting, with_updates
from side_by_side import ROOT

RECIPES = ROOT / "configs" / "recipes"
MEDIANS = (256, 1024, 4096)
SIGMAS = (0.4, 0.8, 1.2)
REFRESHES = (1.0, 10.0, 60.0)  # seconds
GPUS = (8, 64, 1024)


def cells(medians: Sequence[int] = MEDIANS, gpus: Sequence[int] = GPUS) -> list[dict[str, Any]]:
    """Return the ratio for each median, sigma, number of GPUs and seconds of a refresh."""
    shape, found = Shape.read(RECIPES / "forms" / "qwen2.5-7b"), []
    for count in gpus:
        for median in medians:
            for sigma in SIGMAS:
                limit = 4 * median
                options = ["--rollouts.max_new_tokens", str(limit)]
                options += ["--engine.arguments", "{ max_model_len = 32768 }"]
                config = load_config(RECIPES / "mu_grpo.toml", options)
                lengths = assumed(limit, prompt=256, median=median, sigma=sigma)
                setting = Setting(config, shape, load_machine(f"{count}xH200"), lengths)
                planner = Planner(setting)
                few, often = (
                    planner.planned(with_updates(config, n), "colocated", count, count)
                    for n in (1024, 4)
                )
                for seconds in REFRESHES:
                    ratio = with_refresh(few, seconds) / with_refresh(often, seconds)
                    found.append(
                        {
                            "gpus": count,
                            "median": median,
                            "sigma": sigma,
                            "refresh": seconds,
                            "ratio": ratio,
                        }
                    )
    return found


def with_refresh(plan: Planned, seconds: float) -> float:
    """Return a plan's wall-clock if each refresh takes `seconds`."""
    return plan.seconds - plan.parts["refresh"] + seconds * len(plan.stages)


def drawn(found: Sequence[dict[str, Any]]) -> alt.FacetChart:
    """Return a map for each number of GPUs (rows) and each refresh (columns)."""
    rows = [{**cell, "text": f"{cell['ratio']:.2f}"} for cell in found]
    base = alt.Chart(inline(rows)).encode(
        x=alt.X("median:O", title="median response, tokens", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("sigma:O", title="sigma", sort="descending"),
    )
    tiles = base.mark_rect(color=color("run-0")).encode(
        opacity=alt.Opacity("ratio:Q", scale=alt.Scale(domain=[0, 1], range=[1, 0.1]), legend=None)
    )
    layers = alt.layer(tiles, base.mark_text(color=color("ink")).encode(text="text:N"))
    return layers.properties(width=150, height=90).facet(
        row=alt.Row("gpus:O", title="GPUs"),
        column=alt.Column("refresh:O", title="seconds of a refresh"),
    )


def main(argv: Sequence[str] | None = None) -> Path:
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("--output", type=Path, default=ROOT / "docs" / "staging_map.svg")
    options = cli.parse_args(argv)
    found = cells()
    options.output.write_text(svg_file(drawn(found)))
    numbers = Path(__file__).parent / "results" / "planning"
    numbers.mkdir(parents=True, exist_ok=True)
    (numbers / "staging_map.json").write_text(json.dumps(found, indent=1) + "\n")
    return Path(options.output)


if __name__ == "__main__":
    print(main())
