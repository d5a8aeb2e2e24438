"""The report's charts of the bound."""

from __future__ import annotations

from tests.report.parsed import report
from tests.report.synthetic import (
    plausible_run,
    timed_run,
    update,
    write_config,
    write_metrics,
)

PANELS = ("Terms of the bound", "Lower bounds on the improvement", "Variance weight")


def test_the_bound_and_both_variations_are_drawn(tmp_path):
    plausible_run(tmp_path / "run", stages=2, per_stage=4)
    page = report(tmp_path / "run")
    assert {*PANELS, "Total variation"} <= set(page.of("strong"))
    labels = {"tokens", "responses", "surrogate L", "weighted TV", "TV proximal"}
    assert labels | {"factor 1", "as stated"} <= set(page.of("text"))


def test_runs_without_the_numbers_have_no_such_panels(tmp_path):
    timed_run(tmp_path / "run")
    page = report(tmp_path / "run")
    assert not {*PANELS, "Total variation"} & set(page.of("strong"))
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
    assert {"surrogate L", "weighted TV", "factor 1", "as stated"} <= set(page.of("text"))
