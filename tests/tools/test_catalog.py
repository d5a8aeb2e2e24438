from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import mean

import pyarrow.parquet as pq

from mugrpo.config.run import PRESETS, RunConfig, in_four_stages
from mugrpo.tools.catalog import catalog
from tests.cases import table

STUDY = Path(__file__).parents[2] / "studies/results/presets/cells.parquet"
CHOICES = RunConfig.choices()
TEXT = "\n".join(catalog())
GROUPS = [group for group in CHOICES if group not in ("task", "engine", "backend")]


@table("group", GROUPS)
def test_every_part_is_listed_under_its_group(group):
    section = TEXT.partition(f"[{group}]\n")[2].partition("\n\n[")[0]
    for name in CHOICES[group]:
        assert f'name = "{name}"  ' in section


def test_every_objective_has_its_equation_or_says_how_it_is_made():
    for name in set(CHOICES["objective"]) - {"file"}:
        part = TEXT.partition(f'  name = "{name}"  ')[2].partition('\n  name = "')[0]
        assert "loss_t" in part, name


def test_every_preset_is_listed_with_what_it_is():
    for name in PRESETS:
        (line,) = (line for line in TEXT.splitlines() if line.startswith(f"  {name} "))
        assert len(line) > 30


def test_presets_state_what_the_study_found():
    found = defaultdict(list)
    for row in pq.read_table(STUDY).to_pylist():
        found[row["axis/preset"]].append(row["accuracy"])
    for name in PRESETS:
        (line,) = (line for line in TEXT.splitlines() if line.startswith(f"  {name} "))
        if name in found:
            assert in_four_stages(name) == round(mean(found[name]), 2)
            assert line.split()[1] == f"{mean(found[name]):.2f}"
        else:
            assert in_four_stages(name) is None
    assert {"tapered-grpo", "mu-grpo", "grpo", "topr"} <= set(found)


def test_the_cost_of_another_forward_pass_is_mentioned():
    part = TEXT.partition('  name = "decoupled_ppo"  ')[2].partition('\n  name = "')[0]
    assert "needs proximal_logprobs: another forward pass" in part
