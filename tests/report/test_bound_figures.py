"""The report's charts of the bound, and of the success probabilities behind it."""

from __future__ import annotations

import pytest
import torch

from mugrpo.optimize.bound import improvement_bound
from tests.report.parsed import layer, report
from tests.report.synthetic import (
    plausible_run,
    refresh,
    timed_run,
    update,
    write_config,
    write_metrics,
)

PANELS = ("Terms of the bound", "Lower bounds on the improvement", "Variance weight")
SUCCESS = "Variance weight by success probability"


def shares(stage: int, **groups: int) -> dict:
    """Return a refresh with groups of these shares right: p250=3 is three groups of 0.250."""
    counts = {f"groups_right/{int(k[1:]) / 1000:.3f}": n for k, n in groups.items()}
    return refresh(4 * stage, stage, **counts)


def bars(page) -> list[str]:
    return [row["title"] for row in layer(page.charts()["groups by success probability"], "bars")]


def test_the_bound_and_both_variations_are_drawn(tmp_path):
    plausible_run(tmp_path / "run", stages=2, per_stage=4)
    page = report(tmp_path / "run")
    assert {*PANELS, SUCCESS, "Total variation"} <= set(page.of("strong"))
    labels = {"tokens", "responses", "surrogate L", "weighted TV", "TV proximal"}
    assert labels | {"factor 1", "as stated"} <= set(page.of("text"))


def test_runs_without_the_numbers_have_no_such_panels(tmp_path):
    timed_run(tmp_path / "run")
    page = report(tmp_path / "run")
    assert not {*PANELS, SUCCESS, "Total variation"} & set(page.of("strong"))
    assert "The policy-improvement bound" not in page.of("h2")


def test_an_update_without_a_bound_is_a_gap(tmp_path):
    write_config(tmp_path / "run")
    none = {"bound/stated": None, "bound/factor_one": None}
    write_metrics(tmp_path / "run", [update(1, **none), update(2, **none)])
    assert not set(PANELS) & set(report(tmp_path / "run").of("strong"))


def test_runs_are_compared_with_a_style_for_each_term(tmp_path):
    plausible_run(tmp_path / "a", stages=2, per_stage=4)
    plausible_run(tmp_path / "b", stages=2, per_stage=4, seed=1)
    page = report(tmp_path / "a", tmp_path / "b")
    assert page.of("strong").count("Terms of the bound") == 1
    assert page.of("strong").count(SUCCESS) == 2
    assert {"surrogate L", "weighted TV", "factor 1", "as stated"} <= set(page.of("text"))


def test_groups_by_success_probability_by_hand(tmp_path):
    write_config(tmp_path / "run", group_size=4)
    stages = [shares(0, p0=2, p250=1, p500=1), shares(1, p500=1, p1000=3)]
    write_metrics(tmp_path / "run", stages)
    page = report(tmp_path / "run")
    # 8 groups in all: 2 of 0, 1 of 1/4, 2 of 1/2, 3 of 1
    assert bars(page) == [
        "0 right: 0.25 of groups",
        "0.25 right: 0.125 of groups",
        "0.5 right: 0.25 of groups",
        "1 right: 0.375 of groups",
    ]
    assert {"stage 0", "stage 1"} <= set(page.of("text"))
    (first, second) = layer(page.charts()["groups by success probability"], "lines")
    assert first["x"] == second["x"] == [0, 0.25, 0.5, 0.75, 1]
    assert (first["y"], second["y"]) == ([0.5, 0.25, 0.25, 0, 0], [0, 0, 0.25, 0, 0.75])
    assert "The weight diverges at 0 and 1 (only ε keeps it at 99). That is why" in page.text


def test_only_groups_all_right_or_all_wrong_stand_at_the_ends(tmp_path):
    """Responses that do not count give shares between those of groups of 8, such as 1/15."""
    write_config(tmp_path / "run", group_size=8)
    write_metrics(tmp_path / "run", [shares(0, p0=1, p10=1, p67=1, p990=1)])
    assert bars(report(tmp_path / "run")) == [
        "0 right: 0.25 of groups",
        "0.125 right: 0.5 of groups",
        "0.875 right: 0.25 of groups",
    ]


def test_one_stage_needs_no_lines(tmp_path):
    write_config(tmp_path / "run")
    write_metrics(tmp_path / "run", [shares(0, p500=2)])
    chart = report(tmp_path / "run").charts()["groups by success probability"]
    assert [one["name"] for one in chart["layer"]] == ["bars"]


@pytest.mark.parametrize("right", [1, 2, 3])
def test_the_weight_in_the_chart_is_the_bounds(tmp_path, right):
    write_config(tmp_path / "run", group_size=4)
    write_metrics(tmp_path / "run", [shares(0, p500=2)])
    rewards = torch.tensor([[1.0] * right + [0.0] * (4 - right)])
    zeros, all_ = torch.zeros(1, 4), torch.ones(1, 4).bool()
    weight = improvement_bound(zeros, zeros, rewards, all_, all_)["variance_weight"]
    chart = report(tmp_path / "run").charts()["variance weight by success probability"]
    titles = [row["title"] for row in layer(chart, "dots")]
    assert f"{right / 4:g} right: {weight:.3g}" in titles
