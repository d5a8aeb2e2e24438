"""Changes of config, data, model or code between a start and a resume."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.cases import some
from tests.faults.case import Case
from tests.faults.harm import accepted, contents, refused
from tests.runs import MODEL, Command, assert_same, checkpoints, final_weights, killed, mugrpo


@pytest.mark.long
@pytest.mark.parametrize("changed", some(1, ["problems", "model", "code"]))
def test_changed_problems_model_or_code_are_refused_unless_forced(
    run_dir, command, reference, changed
):
    stored = json.loads((run_dir / "config.json").read_text())
    stored["provenance"][key := f"{changed}_sha256"] = "0" * 64
    (run_dir / "config.json").write_text(json.dumps(stored))
    accepted(run_dir)
    before = contents(run_dir)
    refused(command("train", run_dir), f"{changed} changed ({key} does not match)", "--force")
    assert contents(run_dir) == before
    assert command("train", run_dir, "--force").status == 0
    assert_same(run_dir, reference)
    assert command("train", run_dir).status == 0


def test_data_and_a_model_that_have_moved_are_told_by_their_contents(tmp_path, command):
    case, model, data = Case(tmp_path, command, []), tmp_path / "model", tmp_path / "q.jsonl"
    case.data()
    shutil.copytree(MODEL, model)
    assert command("generate", *case.words("--model.path", model)).status == 0
    (tmp_path / "p.jsonl").rename(data)
    refused(command("train", case.run_dir), "there is no data file")
    words = ["train", case.run_dir, "--task.data", data]
    words += ["--model.path", model.rename(tmp_path / "other")]
    good = data.read_bytes()
    data.write_bytes(good.replace(b"4", b"5", 1))
    refused(command(*words), "the problems changed")
    data.write_bytes(good)
    assert command(*words).status == 0
    assert len(checkpoints(case.run_dir)) == 1


@pytest.mark.promise("threads")
@pytest.mark.parametrize("name", some(1, ["threads", "arithmetic"]))
def test_another_number_of_threads_or_version_is_reported_and_goes_on(run_dir, command, name):
    stored = json.loads((run_dir / "config.json").read_text())
    now, stored["provenance"][name] = stored["provenance"][name], "another"
    (run_dir / "config.json").write_text(json.dumps(stored))
    accepted(run_dir)
    ended = command("train", run_dir)
    assert ended.status == 0
    assert f"{name} was another, is now {now}: the resumed run may differ in the last" in ended.out


@pytest.mark.long
def test_a_forced_change_that_is_killed_and_resumed_gives_the_bits_of_one_that_is_not(
    tmp_path: Path, command: Command
):
    killed(tmp_path / "begun", "gradient", 4)
    assert checkpoints(tmp_path / "begun") == [2]  # the second stage's rollouts are of update 3
    change = ("--optimizer.lr", "2e-3", "--force")
    for name in ("whole", "run"):
        shutil.copytree(tmp_path / "begun", tmp_path / name)
    assert command("train", tmp_path / "whole", *change).status == 0
    ended = mugrpo("train", tmp_path / "run", *change, at="config stored")
    assert ended.status == -signal.SIGKILL
    assert command("train", tmp_path / "run", *change).status == 0
    assert final_weights(tmp_path / "run") == final_weights(tmp_path / "whole")
