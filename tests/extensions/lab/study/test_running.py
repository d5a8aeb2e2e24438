"""A study of four tiny cells that is stopped after the first, continued, and shown."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from mugrpo.cli import main
from mugrpo.disk import metrics
from mugrpo.disk.errors import Interrupted, RunStopped, UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.extensions.lab.study import running
from mugrpo.extensions.lab.study.outcome import Results
from mugrpo.extensions.lab.study.page import RESULTS, folder_of
from mugrpo.extensions.lab.study.running import Cells, run_study, show_study
from mugrpo.extensions.lab.study.spec import load_study
from mugrpo.extensions.lab.study.starts import take_start
from mugrpo.processes.lifetime import StopFlag
from mugrpo.run.deciding import decided
from mugrpo.run.opening import open_run
from mugrpo.run.progress import Progress
from tests.cases import table
from tests.faults.harm import refused
from tests.runs import ENVIRONMENT, ROOT, Command, checkpoints, mugrpo, read_metrics, write_config
from tests.waiting import until

pytestmark = pytest.mark.long


STUDY = """
title = "Rates"
question = "Which?"
base = "{base}"
seeds = [10, 11]
columns = ["accuracy", "training_seconds"]
[set]
evaluation.every = 3
checkpoint.every = 0
[axes.rate]
low = {{ optimizer.lr = 1e-9 }}
high = {{ optimizer.lr = 1e-3 }}
"""


class Studied(NamedTuple):
    file: Path
    work: Path
    first: list[str]  # lines printed until it was stopped
    second: list[str]


def forked(self: Cells, words: Sequence[str], log: Path, threads: int) -> str | None:
    """Do what `Cells._process` does with the tests' fork server: one second instead of five."""
    ended = mugrpo(*words)
    log.write_text(ended.out + ended.err)
    return None if ended.status == 0 else ended.err


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Studied:
    """A study run with one cell at a time, stopped by a signal after the first, and run again."""
    home = tmp_path_factory.mktemp("study")
    file = home / "rates.toml"
    file.write_text(STUDY.format(base=write_config(home)))
    said: list[list[str]] = [[], []]
    stop = StopFlag()

    def stopping(sentence: str) -> None:
        said[0].append(sentence)
        if sentence.startswith("[1/4]"):
            stop.signal_name = "SIGTERM"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cells, "_process", forked)
        with pytest.raises(Interrupted):
            run_study(file, home / "work", 1, keep=True, say=stopping, stop=stop)
        run_study(file, home / "work", 2, keep=True, say=said[1].append, stop=StopFlag())
    return Studied(file, home / "work", *said)


def cells(studied: Studied) -> dict[str, Any]:
    rows = Results(folder_of(studied.file) / RESULTS).rows
    return {row["cell"]: row for row in rows}


KILLED = "SIGKILL ended it after: stopped; free memory if that ran out, and run the study again"


@pytest.mark.parametrize(("status", "fault"), [(0, None), (4, None), (3, "stopped"), (-9, KILLED)])
def test_a_run_that_learned_nothing_is_a_result_and_no_fault(tmp_path, monkeypatch, status, fault):
    start = subprocess.Popen
    code = f"import os; print('stopped', flush=True); os.kill(os.getpid(), {-min(status, 0)})\n"
    code += f"raise SystemExit({status})"  # signal 0 is none
    monkeypatch.setattr(
        subprocess, "Popen", lambda _, **options: start([sys.executable, "-c", code], **options)
    )
    cells: Any = SimpleNamespace(_stopping=lambda: False)
    log = tmp_path / "log"
    assert Cells._process(cells, ["train"], log, 1) == (fault and f"{fault} ({log})")


def test_a_finished_cell_is_not_run_again(studied: Studied):
    assert studied.first[0] == "0 of 4 cells are finished"
    assert [line[:5] for line in studied.first[1:]] == ["[1/4]"]
    assert studied.second[0] == "1 of 4 cells are finished"
    assert sorted(line[:5] for line in studied.second[1:]) == ["[2/4]", "[3/4]", "[4/4]"]
    assert len(cells(studied)) == 4
    assert "4 of 4 runs" in show_study(studied.file)


def test_the_command_shows_the_table_and_has_nothing_left_to_run(studied: Studied, capsys):
    assert main(["study", "show", str(studied.file)]) == 0
    shown = capsys.readouterr().out
    assert shown == show_study(studied.file) + "\n" and "| high | 2 |" in shown
    page = folder_of(studied.file) / "README.md"
    page.unlink()
    work = ["--work", str(studied.work), "--jobs", "1"]
    assert main(["study", "run", str(studied.file), *work]) == 0
    assert capsys.readouterr().out == f"4 of 4 cells are finished\n{page}\n"
    assert page.read_text().startswith("# Rates")


def test_a_stopped_study_says_how_to_go_on(monkeypatch, capsys):
    def stopped(*_: Any, **__: Any) -> None:
        raise Interrupted("stopped by SIGINT")

    file = str(ROOT / "studies" / "demo.toml")
    monkeypatch.setattr(running, "run_study", stopped)
    assert main(["study", "run", file, "--work", "w", "--jobs", "1", "--keep"]) == 3
    said = capsys.readouterr().err
    assert "stopped by SIGINT" in said
    assert said.endswith(f"resume with: mugrpo study run {file} --work w --jobs 1 --keep\n")


def test_a_cell_is_the_run_that_its_config_makes(studied: Studied, tmp_path: Path, monkeypatch):
    study, all_ = load_study(studied.file)
    cell = next(c for c in all_ if str(c) == "high, seed 11")
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    assert main(["train", study.base, "--run-dir", str(tmp_path / "run"), *cell.overrides]) == 0
    with open_run(tmp_path / "run", progress=Progress()) as run:
        assert run.config == decided(cell.config, print)
    by_hand = Results(tmp_path / "cells.parquet").add(cell, tmp_path / "run")
    shown = cells(studied)[cell.name]
    for key in ("accuracy", "best", "updates", "stages", "rollouts", "config"):
        assert by_hand[key] == shown[key]
    ours, theirs = ([(p["update"], p["accuracy"]) for p in r["curve"]] for r in (by_hand, shown))
    assert ours == theirs and [u for u, _ in ours] == [0, 3, 6]


def test_cells_of_a_seed_share_what_the_first_has_measured_before_training(studied: Studied):
    """Also the seconds, which no two evaluations have alike. Of seed 11, both ran at once."""
    first = [
        next(
            line
            for line in metrics.read_metrics(studied.work / f"cells/{rate}/seed-10/metrics.jsonl")
            if line["kind"] == "evaluation"
        )
        for rate in ("low", "high")
    ]
    assert first[0] == first[1] and first[0]["time/evaluate"] > 0
    assert len(list((studied.work / "starts").iterdir())) == 2


@table("harm", ["responses", "line"])
def test_what_cells_share_is_compared_with_its_checksums(studied: Studied, tmp_path, harm):
    study, all_ = load_study(studied.file)
    cell, starts = all_[1], tmp_path / "starts"
    shutil.copytree(studied.work / "starts", starts)
    for kept in starts.iterdir():
        shard = kept / "evaluation" / "rollouts" / "shard-00000.parquet"
        file = shard if harm == "responses" else kept / "line.json"
        file.write_bytes(file.read_bytes().replace(b"0", b"1", 3))
    with (
        open_run(Path(study.base), overrides=cell.overrides, run_dir=tmp_path / "run") as run,
        pytest.raises(RunStopped, match=r"shard-00000.parquet|line.json"),
    ):
        take_start(starts, run, cell.threads)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("jobs", [0, -1])
def test_a_study_without_jobs_is_refused(tmp_path: Path, command: Command, jobs: int):
    file = tmp_path / "rates.toml"
    file.write_text(STUDY.format(base=write_config(tmp_path)))
    refused(command("study", "run", file, "--jobs", jobs), f"--jobs {jobs}: at least one cell")
    assert not (tmp_path / "work").exists()


@pytest.mark.long
def test_a_cell_that_fails_is_reported_and_the_others_go_on(tmp_path: Path, monkeypatch):
    """A rate of 1e30 leaves no finite loss, so that run stops and gives no numbers."""
    file = tmp_path / "rates.toml"
    base = write_config(tmp_path)
    broken = "1e30, rollouts.temperature = 1.2"
    file.write_text(STUDY.format(base=base).replace("1e-9", broken))
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    said: list[str] = []
    _, failed = run_study(file, tmp_path / "work", 2, keep=False, say=said.append, stop=StopFlag())
    found = [sentence[:22] for sentence in failed]
    assert found == ["low, seed 10: mugrpo: ", "low, seed 11: mugrpo: "]
    assert sum("high, seed" in sentence for sentence in said) == 2 and set(failed) < set(said)
    assert "| low | 0 |  |  |" in show_study(file)


@pytest.mark.long
def test_a_study_that_is_stopped_saves_the_current_run(tmp_path: Path, monkeypatch):
    """The signal is passed on, so the newest checkpoint is of the update of the last line."""
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    file, stop = tmp_path / "rates.toml", StopFlag()
    text = STUDY.format(base=write_config(tmp_path))
    file.write_text(text.replace("[set]", "[set]\nschedule.stages = 200\n"))
    run = tmp_path / "work" / "cells" / "low" / "seed-10"

    def stopping() -> None:
        until(lambda: any(line["kind"] == "update" for line in read_metrics(run)))
        stop.signal_name = "SIGTERM"

    watch = Thread(target=stopping, daemon=True)
    watch.start()
    with pytest.raises(Interrupted):
        run_study(file, tmp_path / "work", 1, keep=True, say=print, stop=stop)
    assert checkpoints(run)[-1] == read_metrics(run)[-1]["update"] < 600
    assert not Results(folder_of(file) / RESULTS).rows


def test_two_studies_cannot_use_the_same_work_folder(studied: Studied):
    with RunDir(studied.work).locked(), pytest.raises(UsageError, match="is locked by"):
        run_study(studied.file, studied.work, 1, keep=True, say=print, stop=StopFlag())
