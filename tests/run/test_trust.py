"""A config is a program that its user runs; a run's directory is data."""

import json
import shutil
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

import mugrpo
from mugrpo.config.load import load_config
from mugrpo.disk.errors import UsageError
from mugrpo.run.target import read_target
from mugrpo.run.trust import named_by
from tests.faults.case import CONFIG, GOOD
from tests.faults.harm import accepted, refused, summed
from tests.runs import Command, write_config
from tests.runs import mugrpo as in_a_process

UNKNOWN = "was not begun by you on this machine, and names what runs or is connected to: "
RUNS = """
from pathlib import Path
Path({ran!r}).touch()

def judge(completions, **_):
    return [0.0] * len(completions)

class Game:
    def reset(self, **_): ...

    def get_reward(self):
        return 0.0

def loss(logprobs, behavior_logprobs, advantages, mask):
    return -logprobs * advantages[:, None], {{}}
"""
# The parts of a config that name something, with FOLDER for the folder that it is in.
KINDS: dict[str, dict[str, Any]] = {
    "objective.path": {"objective": {"name": "file", "path": "FOLDER/their_code.py"}},
    "task.rewards": {"task": {"rewards": ["FOLDER/their_code.py:judge"]}},
    "task.rewards = their_code:judge": {"task": {"rewards": ["their_code:judge"]}},
    "environment": {"environment": {"name": "FOLDER/their_code.py:Game"}},
    "task.rewards = <their_code:judge": {"task": {"rewards": ["<their_code:judge"]}},
    "engine.python": {"engine": {"name": "vllm", "python": "FOLDER/their_code.sh"}},
    "prompt.chat_template": {
        "prompt": {"form": "chat", "chat_template": "FOLDER/their_code.jinja"}
    },
}
# Ways to write a suite's file, with code in it, that no other way of reading names may miss.
SUITES = ["s.toml", "s.toml ", "s.TOML", "./s", "s.suite", "sub/s.toml", "./s.toml,", "group.toml"]
COMMANDS = dict.fromkeys(["train", "generate", "score", "optimize", "evaluate", "alignment"], ())
COMMANDS["bakeoff"] = ("--objectives", "mu-grpo")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user who has begun and approved nothing yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "mugrpo" / "runs"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, and with code that creates the file "ran" if it runs."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "p.jsonl").write_bytes(GOOD)
    (folder / "their_code.py").write_text(RUNS.format(ran=str(folder / "ran")))
    (folder / "their_code.sh").write_text(f"#!/bin/sh\ntouch {folder / 'ran'}\nexit 1\n")
    (folder / "their_code.sh").chmod(0o755)
    (folder / "their_code.jinja").write_text("{{ messages[0]['content'] }}")
    monkeypatch.chdir(folder)
    return folder


def config_in(folder: Path, name: str = "their.toml") -> Path:
    (folder / name).write_text(CONFIG.replace("DATA", str(folder / "p.jsonl")))
    return folder / name


def received(folder: Path, kind: str | dict[str, Any]) -> Path:
    """Return a run that names code of `kind`, or what a dict says, and has not begun."""
    run_dir = folder / "run"
    with mugrpo.open_run(config_in(folder), run_dir=run_dir):
        pass
    stored = json.loads((run_dir / "config.json").read_text())
    named = KINDS[kind] if isinstance(kind, str) else kind
    named = json.loads(json.dumps(named).replace("FOLDER", str(folder)))
    for group, options in named.items():
        kept = {} if "name" in options else stored["config"][group]
        stored["config"][group] = {**kept, **options}
    (run_dir / "config.json").write_text(json.dumps(stored))
    summed(run_dir / "config.json")
    return run_dir


def names_what_it_runs(run_dir: Path, *words: str) -> None:
    """Assert that the run is refused with all of `words`, before its code is imported."""
    with pytest.raises(UsageError) as refusal:
        read_target(run_dir)
    text = str(refusal.value)
    assert f"{run_dir} {UNKNOWN}" in text and text.endswith("approve it with --trust")
    assert all(word in text for word in words), text
    assert not (run_dir.parent / "ran").exists()


def test_every_command_refuses_a_received_run_until_it_is_approved(folder: Path, command: Command):
    run_dir, ran = received(folder, "task.rewards"), folder / "ran"
    for name, words in COMMANDS.items():
        ended = command(name, run_dir, *words, "--force")
        refused(ended, f"{run_dir} {UNKNOWN}", "task.rewards", "approve it with --trust\n")
    assert command("report", run_dir).status == command("repair", run_dir).status == 0
    assert not ran.exists()
    assert UNKNOWN not in command("generate", run_dir, "--stage", 0, "--trust").err
    assert command("score", run_dir, "--stage", 0).status == 0 and ran.exists()  # it is remembered


def test_benchmark_asks_before_it_reads_the_model(folder: Path, command: Command):
    named = {**KINDS["task.rewards"], "model": {"path": str(folder / "nowhere")}}
    ended = command("benchmark", received(folder, named), "--suite", "gsm8k")
    refused(ended, UNKNOWN, "task.rewards")


@pytest.mark.parametrize("kind", KINDS)
def test_a_received_run_names_its_code(folder: Path, kind: str):
    names_what_it_runs(received(folder, kind), kind.partition(" ")[0])


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_is_asked_about_however_its_file_is_written(folder: Path, name: str):
    file, data = folder / name.strip(), folder / "p.jsonl"
    file.parent.mkdir(exist_ok=True)
    suite = f"""title = "theirs"
max_new_tokens = 8
[task]
data = "{data}"
rewards = [{{function = "their_code:judge", verdict = true}}]
"""
    if name == "group.toml":
        (folder / "one.toml").write_text(suite)
        suite = 'title = "group"\nsuites = ["one.toml"]\n'
    file.write_text(suite)
    run_dir = received(folder, {"evaluation": {"suites": [{"name": name}]}})
    inner = "one.toml" if name == "group.toml" else file.name
    names_what_it_runs(
        run_dir, f"evaluation.suites = {folder}/", f"{inner}: task.rewards = their_code:judge"
    )


def test_what_an_own_run_runs_may_not_change_without_a_yes(folder, command, tmp_path):
    """Neither by another module behind the name, nor in a suite, nor with sums that fit."""
    (folder / "rr.py").write_text((folder / "their_code.py").read_text())
    (folder / "mine.toml").write_text(
        f'title = "m"\nmax_new_tokens = 8\n[task]\ndata = "{folder}/p.jsonl"\n'
        f'rewards = [{{function = "{folder}/their_code.py:judge", verdict = true}}]\n'
    )
    words = ["--task.rewards=rr:judge", f"--evaluation.suites=[{{name = '{folder}/mine.toml'}}]"]
    run_dir = folder / "mine"
    assert command("generate", config_in(folder), *words, "--run-dir", run_dir).status == 0
    read_target(run_dir)
    for name in ("rr.py", "mine.toml", "their_code.py"):
        (folder / "ran").unlink(missing_ok=True)
        kept = (folder / name).read_text()
        (folder / name).write_text(f"{kept}# changed\n")
        ended = command("score", run_dir, "--force")
        refused(ended, f"{run_dir} names what has changed since", str(folder / name), "--trust\n")
        assert not (folder / "ran").exists()
        (folder / name).write_text(kept)
        read_target(run_dir)
    (folder / "rr.py").write_text("# other\n" + (folder / "their_code.py").read_text())
    read_target(run_dir, trust=True)
    read_target(run_dir)


@pytest.mark.parametrize(
    "named",
    [
        {"engine": {"name": "vllm_server", "urls": ["http://HERE"]}},
        {"sinks": {"wandb": "theirs/HERE"}},
    ],
    ids=lambda named: next(iter(named)),
)
def test_a_received_run_connects_to_nobody_without_a_yes(folder: Path, named: dict[str, Any]):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        here = f"127.0.0.1:{server.getsockname()[1]}"
        run_dir = received(folder, json.loads(json.dumps(named).replace("HERE", here)))
        names_what_it_runs(run_dir, f"{next(iter(named))}.", here)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_ones_own_run_never_asks(folder: Path, command: Command, state: Path):
    """It is begun by a config file, and resumed by its folder, also where it was moved to."""
    run_dir, rewards = folder / "runs" / "mine", f"--task.rewards={folder}/their_code.py:judge"
    for words in ([config_in(folder), rewards, "--run-dir", run_dir], [run_dir]):
        assert command("generate", *words).status == 0
    shutil.move(run_dir, folder / "moved")
    read_target(folder / "moved")
    assert stat.S_IMODE(state.stat().st_mode) == 0o700 and len(list(state.iterdir())) == 1


def test_a_copy_elsewhere_and_a_run_that_claims_the_id_of_ones_own_ask(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_dir = received(folder, "task.rewards")
    read_target(run_dir, trust=True)
    copy = Path(shutil.copytree(run_dir, tmp_path / "copy"))
    read_target(copy)  # the same user
    stored = json.loads((copy / "config.json").read_text())
    stored["config"]["objective"] = {"name": "file", "path": str(folder / "their_code.py")}
    (copy / "config.json").write_text(json.dumps(stored))
    summed(copy / "config.json")
    names_what_it_runs(copy, f"objective.path = {folder}/their_code.py")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    names_what_it_runs(run_dir, "task.rewards = ")


@pytest.mark.long
def test_arms_of_a_bakeoff_are_runs_like_others(folder, command, scored_run, no_report, tmp_path):
    """Those that it begins are its user's own. One in a received folder may name any code."""
    run_dir = Path(shutil.copytree(scored_run, tmp_path / "run"))
    words = ["bakeoff", run_dir, "--trust", "--objectives"]  # for the run's template
    assert command(*words, "grpo").status == 0
    arm = run_dir / "bakeoff" / "stage-000" / "grpo" / "config.json"
    stored = json.loads(arm.read_text())
    stored["config"]["objective"] = {"name": "file", "path": str(folder / "their_code.py")}
    arm.write_text(json.dumps(stored))
    accepted(arm.parent)
    names_what_it_runs(arm.parent, "objective.path")


@pytest.mark.long
def test_ranks_and_processes_of_ones_own_run_do_not_ask(tmp_path: Path):
    """A driver has checked what they run. They may be on machines without the user's home."""
    run_dir = tmp_path / "run"
    options = ["--distributed.processes", "2", "--engine.processes", "1"]
    config = write_config(tmp_path)
    ended = in_a_process("train", config, "--run-dir", run_dir, *options)
    assert ended.status == 0, ended


@pytest.mark.parametrize("case", ["a file in its place", "no home"])
def test_without_a_folder_for_approvals_every_command_needs_a_yes(folder, monkeypatch, case):
    run_dir = received(folder, "task.rewards")
    if case == "no home":
        for name in ("XDG_STATE_HOME", "HOME"):
            monkeypatch.delenv(name)
    else:
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "p.jsonl"))
    names_what_it_runs(run_dir)
    read_target(run_dir, trust=True)
    names_what_it_runs(run_dir)


def test_the_question_hides_nothing_and_commands_no_terminal(folder: Path, command: Command):
    """Not even what looks like a password, before a host that is not the one connected to."""
    urls = ["http://a:b@127.0.0.1:9/@ours"]
    run_dir = received(folder, {"engine": {"name": "vllm_server", "urls": urls}})
    refused(command("train", run_dir), f"engine.urls = {urls[0]}")
    shutil.rmtree(run_dir)
    path = f"{folder}/\x1b[2Jcode.py"
    run_dir = received(folder, {"objective": {"name": "file", "path": path}})
    refused(command("train", run_dir), "\\x1b[2Jcode.py")


def test_every_option_that_runs_or_connects_to_something_is_named():
    def names(*overrides: str) -> list[str]:
        return [f"{one.option} = {one.text}" for one in named_by(load_config(None, overrides))]

    data = ["--task.name=dataset", "--task.data=none.jsonl"]
    assert names() == names(*data) == names("--engine.name=vllm") == []
    words = ["--objective.name=file", "--objective.path=/mine.py", "--sinks.wandb=team/project"]
    words += [*data, "--task.rewards=['exact', 'judge.py:f', 'module:h']"]
    words += ["--prompt.form=chat", "--prompt.chat_template=/chat.jinja"]
    words += ["--environment.name=/game.py:Game", "--environment.kwargs={server = 'http://games'}"]
    assert names(*words, "--engine.name=vllm_server") == [
        "objective.path = /mine.py",
        "prompt.chat_template = /chat.jinja",
        "environment = /game.py:Game",
        "task.rewards = judge.py:f",
        "task.rewards = module:h",
        "engine.urls = http://localhost:8000",
        'environment.kwargs = {"server": "http://games"}',
        "sinks.wandb = team/project",
    ]
    vllm = "--engine.name=vllm", "--engine.python=/python", "--engine.arguments={a = 'b.C'}"
    assert names(*vllm) == ["engine.python = /python", 'engine.arguments = {"a": "b.C"}']
