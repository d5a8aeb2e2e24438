"""Reading a study's file into cells."""

import re
from pathlib import Path

import pytest

from mugrpo.config.load import load_config
from mugrpo.disk.errors import UsageError
from mugrpo.extensions.lab.study.outcome import outcome
from mugrpo.extensions.lab.study.spec import _COLUMNS, _PATTERNS, load_study
from mugrpo.report.read import read_runs
from tests.cases import table
from tests.runs import ROOT

BASE = """
preset = "mu-grpo"
schedule = { stages = 2, batches_per_stage = 3 }
optimizer = { lr = 1e-3 }
"""
STUDY = """
title = "T"
question = "Q"
base = "{base}"
seeds = [4, 5]
[set]
optimizer.lr = 2e-3
[axes.method]
"GRPO!" = {{ preset = "grpo", schedule.batches_per_stage = 4 }}
veto = {{ veto.threshold = 0.5 }}
[axes.rate]
low = {{ }}
high = {{ optimizer.lr = 1.0 }}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(BASE)
    study = tmp_path / "study.toml"
    study.write_text(STUDY.format(base=tmp_path / "base.toml"))
    return study


def replaced(file: Path, old: str, new: str) -> Path:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return file


def test_a_cell_is_the_base_then_set_then_the_values_then_the_seed(file):
    study, cells = load_study(file)
    assert study.seeds == (4, 5) and len(cells) == 8
    found = [str(c) for c in cells[:3]]
    assert found == ["GRPO!, low, seed 4", "GRPO!, high, seed 4", "veto, low, seed 4"]
    made = [
        (c.seed, c.config.preset, c.config.schedule.batches_per_stage, c.config.optimizer.lr)
        for c in cells[:4]
    ]
    assert made == [
        (4, "grpo", 4, 2e-3),
        (4, "grpo", 4, 1.0),
        (4, "mu-grpo", 3, 2e-3),
        (4, "mu-grpo", 3, 1.0),
    ]
    assert {c.config.schedule.stages for c in cells} == {2}
    assert [c.config.veto.knobs.get("threshold") for c in cells[:4]] == [None, None, 0.5, 0.5]
    for cell in cells:  # the command line makes the same config from the base
        assert load_config(Path(study.base), cell.overrides) == cell.config
    assert cells[0].name == "grpo/low/seed-4" and len({c.name for c in cells}) == 8


def figure(kind: str, more: str) -> str:
    return f'question = "Q"\nfigures = [{{ name = "f", title = "F", kind = {kind}, {more} }}]'


@table(
    ("old", "new", "message"),
    [
        ("seeds = [4, 5]", "seeds = []", r"seeds = .* not be empty"),
        ("seeds = [4, 5]", "seeds = [4, 4]", r"seeds \[4, 4\] contain a duplicate"),
        ('title = "T"', "", r"title must be given"),
        ('question = "Q"', 'question = "Q"\nsede = 1', r"no option sede; choose among title"),
        ("optimizer.lr = 1.0", "optimizer.lr = -1.0", r"high: optimizer\.lr = -1"),
        ("veto.threshold = 0.5", "vetto.threshold = 0.5", r"veto, low: .* mean veto.threshold"),
        ('"GRPO!"', '"Veto?"', r"axes\.method has a value 'Veto\?' .* rename it"),
        ('"GRPO!"', '"!"', r"axes\.method has a value '!' .* rename it"),
        ('question = "Q"', 'question = "Q"\nbaseline = {method = "x"}', r"baseline\.method = 'x'"),
        ('question = "Q"', 'question = "Q"\nbaseline = 3', r"baseline = 3: it should be a list"),
        (
            'question = "Q"',
            figure('"time"', 'lines = "method", arms = ["x"]'),
            r"f: 'x' is not a va",
        ),
        ('question = "Q"', figure('"speedup"', 'lines = "method"'), r"f: a speedup needs a basel"),
        ('question = "Q"', figure('"time"', "seeds = [3]"), r"f: 3 is not a seed of the study"),
    ],
)
def test_a_bad_study_is_refused_in_one_sentence(file, old, new, message):
    good = file.read_text()
    with pytest.raises(UsageError, match=message):
        load_study(replaced(file, old, new))
    file.write_text(good)


def test_every_column_of_a_runs_results_is_known(reference: Path):
    (run,) = read_runs([reference])
    for column in outcome(run).keys() - {"curve"}:
        assert column in _COLUMNS or re.fullmatch(_PATTERNS, column), column


@table("name", sorted(p.name for p in (ROOT / "studies").glob("*.toml")))
def test_the_projects_studies_have_enough_seeds(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    study, cells = load_study(ROOT / "studies" / name)
    seeds = len(study.seeds)
    if seeds < 5:  # it looks for what is worth five seeds, and its page says so
        text = f"{study.setting} {study.findings}".lower().replace("\n", " ")
        assert {1: "one seed", 2: "two seeds", 3: "three seeds"}[seeds] in text
    assert len({c.name for c in cells}) == len(cells)
