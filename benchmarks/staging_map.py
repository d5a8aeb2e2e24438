"""Where few stages pay, by plan: `python benchmarks/staging_map.py` draws docs/staging_map.svg.

A cell is the planned wall-clock of four stages over that of a refresh every four updates, with as
many updates: Mu-GRPO's recipe (configs/recipes/mu_grpo.toml: 7 B parameters, 64 problems x 8
responses for an update, 4,096 updates) on H100s, in one pool that generates and trains in turn.
Nothing here was run: every number follows from counted operations, data sheets and the assumptions
in src/mugrpo/tools/plan/machines (docs/planning.md, which also says how far plans have been off).
Responses are lognormal, cut at 8,192 tokens; their lengths stay the same over the run. Scoring and
evaluations, which both schedules have alike, are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt

from mugrpo.config.load import load_config
from mugrpo.config.run import RunConfig
from mugrpo.extensions.lab.plan.counts import Shape
from mugrpo.extensions.lab.plan.lengths import assumed
from mugrpo.extensions.lab.plan.machine import load_machine
from mugrpo.extensions.lab.plan.schedules import Planned, Planner
from mugrpo.extensions.lab.plan.setting import Setting, with_updates
from mugrpo.report.charts import color, inline
from mugrpo.report.embed import svg_file
from side_by_side import ROOT

RECIPE = ROOT / "configs" / "recipes" / "mu_grpo.toml"
FORM = ROOT / "configs" / "recipes" / "forms" / "qwen2.5-math-7b"
LONGEST, PROMPT, FRESH, STAGES = 8192, 300, 4, 4
MEDIANS, SIGMAS = (100, 400, 1600), (0.4, 0.8, 1.2)
REFRESHES, DEVICES = (1.0, 10.0, 60.0), (8, 64, 256, 1024)
PARTS = ("generate", "optimize", "checkpoint")


def both(config: RunConfig, shape: Shape, devices: int, median: float, sigma: float) -> list[Any]:
    """Return the plans of four stages and of fresh rollouts, refreshes aside."""
    machine = load_machine(f"{devices}xH100")
    lengths = assumed(LONGEST, prompt=PROMPT, median=median, sigma=sigma)
    planner = Planner(Setting(config, shape, machine, lengths))
    total = config.schedule.total_updates
    several = (with_updates(config, total // STAGES), with_updates(config, FRESH))
    return [planner.planned(stages, "colocated", devices, devices) for stages in several]


def seconds(plan: Planned, refresh: float) -> float:
    return sum(plan.parts[part] for part in PARTS) + refresh * len(plan.stages)


def cells(devices: Sequence[int], medians: Sequence[int], sigmas: Sequence[float]) -> list[Any]:
    """Return a row for each combination of devices, lengths and seconds of a refresh."""
    words = ["--rollouts.max_new_tokens", str(LONGEST), "--checkpoint.stage_end", "false"]
    config, shape = load_config(RECIPE, words), Shape.read(FORM)
    rows = []
    for number in devices:
        for median in medians:
            for sigma in sigmas:
                few, fresh = both(config, shape, number, median, sigma)
                rows += [
                    {
                        "devices": f"{number:,} GPUs",
                        "lengths": f"{median:,} tokens, sigma {sigma:g}",
                        "refresh": f"{refresh:g} s",
                        "ratio": seconds(few, refresh) / seconds(fresh, refresh),
                    }
                    for refresh in REFRESHES
                ]
                print(f"{number} GPUs, median {median}, sigma {sigma}", flush=True)
    return rows


def drawn(rows: list[Any]) -> alt.FacetChart:
    def in_order(name: str) -> list[str]:
        return list(dict.fromkeys(row[name] for row in rows))

    base = alt.Chart(inline(rows)).encode(
        x=alt.X(
            "refresh:N",
            sort=in_order("refresh"),
            title="a refresh takes",
            axis=alt.Axis(labelAngle=0),
        ),
        y=alt.Y("lengths:N", sort=in_order("lengths"), title=None),
    )
    scale = alt.Scale(domain=[0.2, 1.0], range=[0.8, 0.05], clamp=True)
    fields = base.mark_rect(color=color("run-0")).encode(
        opacity=alt.Opacity("ratio:Q", scale=scale, legend=None)
    )
    numbers = base.mark_text().encode(
        text=alt.Text("ratio:Q", format=".2f"), color=alt.value(color("ink"))
    )
    panel = alt.layer(fields, numbers).properties(width=150, height=240)
    return panel.facet(column=alt.Column("devices:N", sort=in_order("devices"), title=None))


def main(argv: Sequence[str] | None = None) -> list[Any]:
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--output", type=Path, default=ROOT / "docs" / "staging_map.svg")
    cli.add_argument("--tiny", action="store_true", help="one cell: does the command work?")
    options = cli.parse_args(argv)
    few = (DEVICES[:1], MEDIANS[:1], SIGMAS[:1])
    rows = cells(*(few if options.tiny else (DEVICES, MEDIANS, SIGMAS)))
    options.output.write_text(svg_file(drawn(rows)))
    print(f"written: {options.output}")
    return rows


if __name__ == "__main__":
    main()
