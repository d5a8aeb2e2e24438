"""Changes of config, data, model or code between a start and a resume."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from mugrpo.config.run import ModelOptions
from mugrpo.model.pretrained import model_fingerprint
from tests.faults.harm import accepted, contents, edited, flip_bit, refused
from tests.runs import (
    Command,
    assert_same,
    checkpoints,
    final_weights,
    killed,
    mugrpo,
    read_metrics,
    write_config,
)

pytest_plugins = ["tests.run_fixtures"]


def test_a_changed_config_is_refused_with_its_differences_and_nothing_is_touched(
    run_dir: Path, command: Command
):
    before = contents(run_dir)
    options = ["--optimizer.lr", "2e-3", "--optimizer.eps", "1e-6", "--evaluation.every", "2"]
    ended = command("train", run_dir, *options)
    refused(
        ended,
        "optimizer.lr: 0.001 -> 0.002",
        "optimizer.eps: 1e-08 -> 1e-06",
        "--run-dir",
        "--force",
    )
    assert "evaluation.every" not in ended.err
    assert contents(run_dir) == before
    changed = write_config(run_dir.parent / "config")
    changed.write_text(changed.read_text().replace("lr = 1e-3", "lr = 2e-3"))
    refused(command("train", changed, "--run-dir", run_dir), "optimizer.lr: 0.001 -> 0.002")
    assert contents(run_dir) == before


def test_another_preset_for_a_begun_run_is_refused(run_dir: Path, command: Command):
    """Every option of the run is set by then, so another preset would change nothing."""
    before = contents(run_dir)
    for force in ((), ("--force",)):
        ended = command("train", run_dir, "--preset", "cispo", *force)
        refused(ended, "was started with preset mu-grpo", "single options", "--run-dir")
    assert contents(run_dir) == before
    assert command("train", run_dir, "--preset", "mu-grpo").status == 0


def test_harmless_options_may_change_and_are_reported(
    run_dir: Path, command: Command, reference: Path
):
    ended = command("train", run_dir, "--evaluation.every", "2", "--checkpoint.every", "1")
    assert ended.status == 0
    assert "changed since the run began: evaluation.every: 3 -> 2\n" in ended.out
    assert "changed since the run began: checkpoint.every: 2 -> 1\n" in ended.out
    assert checkpoints(run_dir) == [2, 3, 4, 5, 6]
    assert final_weights(run_dir) == final_weights(reference)
    stored = json.loads((run_dir / "config.json").read_text())["config"]
    assert (stored["evaluation"]["every"], stored["checkpoint"]["every"]) == (2, 1)
    assert "changed" not in command("train", run_dir).out


def test_a_forced_change_is_reported_stored_and_used(run_dir: Path, command: Command):
    ended = command("train", run_dir, "--optimizer.lr", "2e-3", "--force")
    assert ended.status == 0
    assert "changed since the run began: optimizer.lr: 0.001 -> 0.002\n" in ended.out
    rates = [line["lr"] for line in read_metrics(run_dir) if line["kind"] == "update"]
    # They fall linearly to half: by 0.5 x 3/6 at the fourth update, 4/6 and 5/6 at the last two.
    assert rates[3] == pytest.approx(0.75e-3)
    assert rates[4:] == pytest.approx([2e-3 * (1 - 0.5 * 4 / 6), 2e-3 * (1 - 0.5 * 5 / 6)])
    assert json.loads((run_dir / "config.json").read_text())["config"]["optimizer"]["lr"] == 2e-3


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("problems_sha256", "the problems changed"),
        ("model_sha256", "the model changed"),
        ("code_sha256", "mugrpo's code changed"),
    ],
)
def test_changed_problems_model_or_code_are_refused_unless_forced(
    run_dir: Path, command: Command, reference: Path, key: str, words: str
):
    stored = json.loads((run_dir / "config.json").read_text())
    stored["provenance"][key] = "0" * 64
    (run_dir / "config.json").write_text(json.dumps(stored))
    accepted(run_dir)
    before = contents(run_dir)
    refused(command("train", run_dir), f"{words} ({key} does not match)", "--force")
    assert contents(run_dir) == before
    assert command("train", run_dir, "--force").status == 0
    assert_same(run_dir, reference)
    assert command("train", run_dir).status == 0


@pytest.mark.promise("threads")
@pytest.mark.parametrize("name", ["threads", "arithmetic"])
def test_another_number_of_threads_or_version_is_reported_and_goes_on(
    run_dir: Path, command: Command, name: str
):
    stored = json.loads((run_dir / "config.json").read_text())
    now, stored["provenance"][name] = stored["provenance"][name], "another"
    (run_dir / "config.json").write_text(json.dumps(stored))
    accepted(run_dir)
    ended = command("train", run_dir)
    assert ended.status == 0
    assert f"{name} was another, is now {now}: the resumed run may differ in the last" in ended.out


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "generation_config.json"])
def test_a_model_file_that_changed_is_refused(
    model: Path, tmp_path: Path, command: Command, name: str
):
    run_dir = tmp_path / "run"
    words = [write_config(tmp_path), "--run-dir", run_dir, "--model.path", model]
    assert command("generate", *words).status == 0
    before = contents(run_dir)
    if name.endswith(".json"):
        (model / name).write_text((model / name).read_text() + "\n")
    else:
        flip_bit(model / name)
    refused(command("train", *words), "the model changed", "--force")
    assert contents(run_dir) == before


def test_other_problems_of_the_same_task_are_refused(run_dir: Path, command: Command):
    ended = command("train", run_dir, "--task.seed", "1")
    refused(ended, "task.seed: 0 -> 1", "the problems changed")


def test_a_chat_template_file_that_changed_is_refused(tmp_path: Path, command: Command):
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0]['content'] }}")
    words = [write_config(tmp_path), "--run-dir", tmp_path / "run"]
    words += ["--prompt.form", "chat", "--prompt.chat_template", template]
    assert command("generate", *words).status == 0
    template.write_text("1+1-{{ messages[0]['content'] }}")
    refused(command("train", *words), "template")


@pytest.mark.parametrize("name", ["merges.txt", "vocab.txt", "tokenizer.model", "spiece.model"])
def test_every_tokenizer_file_is_part_of_the_models_fingerprint(model: Path, name: str):
    before = model_fingerprint(ModelOptions(path=str(model)))
    (model / name).write_text("a b")
    after = model_fingerprint(ModelOptions(path=str(model)))
    assert before != after


def test_a_run_with_a_relative_model_path_is_resumed_from_another_directory(
    model: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, reference: Path
):
    run_dir = tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    words = [write_config(tmp_path), "--run-dir", run_dir, "--model.path", "./model"]
    assert command("generate", *words).status == 0
    monkeypatch.chdir("/")
    assert command("train", run_dir).status == 0
    assert final_weights(run_dir) == final_weights(reference)


def test_another_shard_size_is_refused_even_with_force(run_dir: Path, command: Command):
    before = contents(run_dir)
    ended = command("train", run_dir, "--rollouts.shard_rollouts", 24, "--force")
    parts = ("rollouts.shard_rollouts: 8 -> 24", "The shards on disk depend on rollouts.shard_roll")
    refused(ended, *parts)
    assert contents(run_dir) == before


def test_the_remedy_that_a_refusal_names_works_on_the_same_directory(
    model: Path, tmp_path: Path, command: Command
):
    edited(model / "tokenizer_config.json", eos_token=None)
    words = ["train", write_config(tmp_path), "--run-dir", tmp_path / "run", "--model.path", model]
    refused(command(*words), "name one with --model.eos_token")
    assert command(*words, "--model.eos_token", "<eos>").status == 0


def test_fewer_stages_than_are_done_are_refused(run_dir: Path, command: Command):
    ended = command("train", run_dir, "--schedule.stages", "1", "--force")
    refused(ended, "schedule.stages")


def test_forcing_more_stages_continues_where_the_run_ended(
    run_dir: Path, command: Command, reference: Path
):
    assert command("train", run_dir).status == 0
    ended = command("train", run_dir, "--schedule.stages", "3", "--force")
    assert ended.status == 0
    assert checkpoints(run_dir) == [2, 3, 4, 6, 8, 9]
    assert final_weights(run_dir) == final_weights(reference)  # update 6 is as it was


@pytest.mark.long
def test_a_forced_change_that_is_killed_and_resumed_gives_the_bits_of_one_that_is_not(
    tmp_path: Path, command: Command
):
    no_stage_end = ("--checkpoint.stage_end", "false")
    killed(tmp_path / "begun", "gradient", 4, *no_stage_end)
    assert checkpoints(tmp_path / "begun") == [2]  # the second stage's rollouts are of update 3
    change = ("--optimizer.lr", "2e-3", "--force")
    for name in ("whole", "run"):
        shutil.copytree(tmp_path / "begun", tmp_path / name)
    assert command("train", tmp_path / "whole", *change).status == 0
    ended = mugrpo("train", tmp_path / "run", *change, at="config stored")
    assert ended.status == -signal.SIGKILL
    assert command("train", tmp_path / "run", *change).status == 0
    assert final_weights(tmp_path / "run") == final_weights(tmp_path / "whole")
