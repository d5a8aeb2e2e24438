"""Benchmark suites during training: when they are measured, and which checkpoint is kept."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mugrpo.config.run import RunConfig
from mugrpo.config.training import SuiteUse
from mugrpo.disk.metrics import encoded, read_metrics
from mugrpo.report import write_report
from mugrpo.run.suites import measuring_due, suites_due
from tests.extensions.evals.conftest import suite_in
from tests.faults.harm import flip_bit, refused, stopped
from tests.runs import CONFIG, finished, killed, write_config


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Overrides that measure two suites: `short` every two updates, `rare` at both ends."""
    folder = tmp_path_factory.mktemp("suites")
    text = suite_in(folder, 6).read_text().replace("samples = 4", "samples = 2")
    for name in ("short", "rare"):
        (folder / f"{name}.toml").write_text(text)
    uses = f'[{{name="{folder}/short.toml", every=2}}, {{name="{folder}/rare.toml"}}]'
    return ("--evaluation.suites", uses)


@pytest.fixture(scope="module")
def measured(suites: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run with these suites. Tests only read it."""
    run = tmp_path_factory.mktemp("measured") / "run"
    finished(run, *suites)
    return run


def lines_of(run: Path, kind: str) -> dict[int, dict[str, Any]]:
    """Return update -> line, without what differs from run to run."""
    lines = (line for line in read_metrics(run / "metrics.jsonl") if line["kind"] == kind)
    return {
        line["update"]: {k: v for k, v in line.items() if not k.startswith("time/")}
        for line in lines
    }


def test_each_suite_has_its_period_and_both_ends():
    """Ranks hand the policy over whenever any is measured, or held-out problems are."""
    uses = (SuiteUse(name="a", every=2), SuiteUse(name="b"), SuiteUse(name="c", every=5))
    config = RunConfig.model_validate(
        {
            "schedule": {"stages": 1, "batches_per_stage": 7},
            "evaluation": {"every": 3, "suites": [use.model_dump() for use in uses]},
        }
    )
    due = {update: [use.name for use in suites_due(config, update)] for update in range(8)}
    assert due == {
        **{0: ["a", "b", "c"], 1: [], 2: ["a"], 3: [], 4: ["a"]},
        **{5: ["c"], 6: ["a"], 7: ["a", "b", "c"]},
    }
    assert [u for u in range(8) if measuring_due(config, u)] == [0, 2, 3, 4, 5, 6, 7]


@pytest.mark.long
def test_suites_change_nothing_but_what_is_measured(reference, measured, tmp_path):
    run = measured
    assert [*lines_of(run, "suite/short")] == [0, 2, 4, 6]
    assert [*lines_of(run, "suite/rare")] == [0, 6]
    for kind in ("refresh", "update", "evaluation"):
        assert lines_of(run, kind) == lines_of(reference, kind)
    # The same suite under two names: other seeds, hence other responses.
    short, rare = lines_of(run, "suite/short")[0], lines_of(run, "suite/rare")[0]
    assert short["problems"] == rare["problems"] == 6 and short["samples"] == 2
    assert short["temperature"] == 1.3  # as the run trains
    assert short != rare
    page = write_report([run], tmp_path / "report.html").read_text()
    assert "short against updates" in page and "rare against updates" in page


@pytest.mark.long
def test_a_suites_line_and_its_result_must_agree_and_are_made_again(measured, tmp_path, command):
    """The last line has another accuracy and a fitting checksum; an earlier result is damaged."""
    run = Path(shutil.copytree(measured, tmp_path / "run"))
    lines = list(read_metrics(run / "metrics.jsonl"))
    (last,) = (x for x in lines if (x["kind"], x["update"]) == ("suite/short", 6))
    last["accuracy"] = 0.875
    (run / "metrics.jsonl").write_bytes(b"".join(map(encoded, lines)))
    result = run / "benchmarks/short/update-000002/result.json"
    stopped(command("train", run), "another result of short after update 6", "`mugrpo repair")
    flip_bit(result)
    refused(command("card", run), f"{result} is damaged", "`mugrpo repair")
    out = command("repair", run).out
    assert "2 damaged" in out and f"`mugrpo evaluate {run} --update 2` makes it again" in out
    left = {
        update: x for update, x in lines_of(measured, "suite/short").items() if update in (0, 4)
    }
    assert lines_of(run, "suite/short") == left
    assert command("evaluate", run, "--update", 2).status == 0
    assert command("train", run).status == 0
    assert lines_of(run, "suite/short") == lines_of(measured, "suite/short")
    assert command("repair", run).out == "no damage found\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "nth"),
    [("evaluation sampled", 2), ("evaluation scored", 3), ("suite without metrics line", 2)],
)
def test_a_run_killed_while_it_measures_ends_the_same(suites, measured, tmp_path, place, nth):
    run = tmp_path / "run"
    killed(run, place, nth, *suites)
    finished(run, *suites)
    for kind in ("suite/short", "suite/rare", "update"):
        assert lines_of(run, kind) == lines_of(measured, kind)


@pytest.mark.parametrize("name", ["problems.jsonl", "short.toml", "judge.py"])
def test_a_suite_that_changed_in_the_middle_of_a_run_is_named(name, suites, tmp_path, command):
    """Accuracy would change at the same weights. Another suite may be measured from now on."""
    source = Path(suites[1].partition('"')[2].partition("/short.toml")[0])
    folder = Path(shutil.copytree(source, tmp_path / "suites"))
    (folder / "judge.py").write_text("def judge(completions, **_): return [0.0] * len(completions)")
    text = (folder / "short.toml").read_text().replace(str(source), str(folder))
    judged = text.replace("[{", f"['{folder}/judge.py:judge', {{")
    (folder / "short.toml").write_text(judged)
    uses = suites[1].replace(str(source), str(folder))
    config, run = write_config(tmp_path, CONFIG), tmp_path / "run"
    words = ["generate", config, "--run-dir", run, "--evaluation.suites"]
    assert command(*words, uses).status == 0
    with open(folder / name, "a") as file:
        file.write("\n")
    ended = command(*words, uses)
    assert ended.status == 2 and f"a suite's file changed ({folder / name})" in ended.err
    assert "--force" in ended.err
    assert command(*words, f'[{{name="{folder}/rare.toml"}}]').status == 0


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        ('{name="gsm9k"}', "there is no suite 'gsm9k'"),
        ('{name="math"}', "math is a group; name its suites (aime24"),
        ('{name="gsm8k", data="missing.jsonl"}', "missing.jsonl"),
    ],
)
def test_a_suite_that_cannot_be_read_stops_the_run_at_once(use, sentence, tmp_path, command):
    words = ("train", write_config(tmp_path), "--run-dir", tmp_path / "run")
    ended = command(*words, "--evaluation.suites", f"[{use}]")
    assert ended.status == 2 and sentence in ended.err
    assert not (tmp_path / "run" / "stages").exists()
