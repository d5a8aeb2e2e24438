"""What someone else made runs nothing of theirs without a yes, and one's own never asks."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

import mugrpo
from mugrpo.run import trust
from tests.faults.case import CONFIG, GOOD
from tests.faults.harm import accepted, refused
from tests.runs import Command, write_config
from tests.runs import mugrpo as in_a_process

pytest_plugins = ["tests.run_fixtures"]

UNKNOWN = "names what you have not used or approved here: "
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
    "engine.python": {"engine": {"name": "vllm", "python": "FOLDER/their_code.sh", "restarts": 0}},
    "prompt.chat_template": {
        "prompt": {"form": "chat", "chat_template": "FOLDER/their_code.jinja"}
    },
}
COMMANDS = {
    "train": (),
    "generate": (),
    "score": (),
    "optimize": (),
    "evaluate": (),
    "bakeoff": ("--objectives", "mu-grpo"),
    "alignment": (),
}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user who has approved nothing yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "mugrpo" / "trusted"


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
    accepted(run_dir)
    return run_dir


@pytest.mark.parametrize("kind", KINDS)
def test_a_received_run_runs_nothing_without_a_yes(folder: Path, command: Command, kind: str):
    run_dir, ran = received(folder, kind), folder / "ran"
    for name, words in COMMANDS.items():
        for force in ((), ("--force",)):
            ended = command(name, run_dir, *words, *force)
            refused(ended, f"{run_dir} {UNKNOWN}{kind}", "approve them with --trust\n")
            assert not ran.exists()
    approved = command("train", run_dir, "--trust")
    assert UNKNOWN not in approved.err
    assert ran.exists() or kind == "prompt.chat_template"
    ran.unlink(missing_ok=True)
    assert UNKNOWN not in command("train", run_dir).err  # it is remembered
    for file in folder.glob("their_code.*"):
        file.write_text(file.read_text() + "\n")
    ran.unlink(missing_ok=True)
    refused(command("train", run_dir), f"{UNKNOWN}{kind}", "(changed since then)", "--trust or")
    assert not ran.exists()


@pytest.mark.parametrize(
    "named",
    [
        {"distributed": {"machines": 2, "address": "HERE"}},
        {"backend": {"name": "ray", "address": "HERE"}},
        {"engine": {"name": "vllm_server", "urls": ["http://HERE"]}},
        {"task": {"rewards": [{"name": "code", "sandbox": "sandboxfusion", "url": "http://HERE"}]}},
        {"sinks": {"wandb": "theirs/HERE"}},
    ],
    ids=lambda named: next(iter(named)),
)
def test_a_received_run_connects_to_nobody_without_a_yes(
    folder: Path, command: Command, named: dict[str, Any]
):
    """A store that torchrun meets at and a Ray cluster can run code here: what they send is pickle.

    A finished run starts no ranks for its stages, but would still meet the other machines.
    """
    run_dir = folder / "run"
    assert command("train", config_in(folder), "--run-dir", run_dir).status == 4  # learns nothing
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        here = f"127.0.0.1:{server.getsockname()[1]}"
        stored = json.loads((run_dir / "config.json").read_text())
        (group, options), *_ = json.loads(json.dumps(named).replace("HERE", here)).items()
        kept = stored["config"][group] if group != "engine" else {}
        stored["config"][group] = {**kept, **options}
        (run_dir / "config.json").write_text(json.dumps(stored))
        accepted(run_dir)
        for name, words in COMMANDS.items():
            ended = command(name, run_dir, *words, "--force")
            refused(ended, f"{run_dir} {UNKNOWN}{group}.", here, "approve them with --trust\n")
        with pytest.raises(BlockingIOError):
            server.accept()


def test_all_that_a_run_names_is_listed_and_approved_together(folder: Path, command: Command):
    run_dir = received(folder, "task.rewards")
    stored = json.loads((run_dir / "config.json").read_text())
    stored["config"]["objective"] = {"name": "file", "path": str(folder / "their_code.py")}
    (run_dir / "config.json").write_text(json.dumps(stored))
    accepted(run_dir)
    first = f"objective.path = {folder}/their_code.py; "
    second = f"task.rewards = {folder}/their_code.py. Look at them"
    refused(command("train", run_dir), f"{UNKNOWN}{first}{second}", "with --trust\n")
    assert not (folder / "ran").exists()
    command("train", run_dir, "--trust")
    assert UNKNOWN not in command("train", run_dir).err and (folder / "ran").exists()


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("objective.path", "objective_sha256"),
        ("task.rewards", "rewards_sha256"),
        ("environment", "environment_sha256"),
        ("prompt.chat_template", "template_sha256"),
    ],
)
def test_the_hashes_in_the_run_itself_approve_nothing(
    folder: Path, command: Command, kind: str, key: str
):
    run_dir = received(folder, kind)
    assert command("train", run_dir, "--trust").status in (0, 4)
    (folder / "ran").unlink(missing_ok=True)
    for file in folder.glob("their_code.*"):
        file.write_text(file.read_text() + "\n")
    stored = json.loads((run_dir / "config.json").read_text())
    assert stored["provenance"][key]
    with mugrpo.open_run(run_dir, force=True, trust=True):  # writes what matches
        pass
    matching = json.loads((run_dir / "config.json").read_text())["provenance"][key]
    assert matching != stored["provenance"][key]
    shutil.rmtree(os.environ["XDG_STATE_HOME"])
    refused(command("train", run_dir), f"{UNKNOWN}{kind}")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_ones_own_run_never_asks(folder: Path, command: Command, kind: str, state: Path):
    """It is begun by a config file, and resumed by its folder, in a process too."""
    config, named = config_in(folder, "mine.toml"), KINDS[kind]
    words = [
        f"--{group}.{name}={json.dumps(value).replace('FOLDER', str(folder))}"
        for group, options in named.items()
        for name, value in options.items()
    ]
    run_dir = folder / "runs" / "mine"
    for target in ([config, *words], [run_dir]):
        assert UNKNOWN not in command("train", *target).err
        assert UNKNOWN not in command("generate", *target).err
    shutil.move(run_dir, folder / "moved")
    assert UNKNOWN not in command("train", folder / "moved").err
    name, *_ = state.iterdir()
    assert stat.S_IMODE(state.stat().st_mode) == stat.S_IMODE(name.stat().st_mode) == 0o700


def test_a_changed_file_of_ones_own_run_asks_one_question(folder: Path, command: Command):
    """`--force` accepts the change, as it does for all that a run's numbers depend on."""
    words = [config_in(folder), "--run-dir", folder / "run", "--task.rewards=their_code.py:judge"]
    assert command("train", *words).status == 4  # every reward is 0
    with open(folder / "their_code.py", "a") as file:
        file.write("\n")
    refused(command("train", *words), "a reward function's file changed", "--force")
    assert command("train", *words, "--force").status == 4
    with open(folder / "their_code.py", "a") as file:
        file.write("\n")
    run_dir = folder / "run"
    refused(command("train", run_dir), "(changed since then)", "--trust or --force")
    refused(command("train", run_dir, "--trust"), "a reward function's file changed", "--force")
    assert command("train", run_dir).status == 2  # it still counts as changed in the run
    assert command("train", run_dir, "--force").status == 4


def test_what_is_named_on_the_command_line_is_the_users_own_choice(folder: Path, command: Command):
    run_dir = received(folder, "engine.python")
    own = ["--engine.name=hf", "--objective.name=file", "--objective.path=their_code.py"]
    assert UNKNOWN not in command("train", run_dir, *own).err
    assert (folder / "ran").exists()


def test_code_of_a_run_that_was_copied_to_another_user_asks_there(
    folder: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    words = [config_in(folder), "--run-dir", folder / "run", "--task.rewards=their_code.py:judge"]
    assert command("generate", *words).status == 0
    copy = Path(shutil.copytree(folder / "run", tmp_path / "copy"))
    assert command("score", copy).status == 0  # the same user
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    refused(command("score", copy), f"{copy} {UNKNOWN}task.rewards = {folder}/their_code.py")


def test_the_arms_of_a_bakeoff_and_the_methods_file_are_checked(
    folder: Path, command: Command, scored_run: Path, no_report: None, tmp_path: Path
):
    """An arm in a received folder may name code although its run does not."""
    run_dir = Path(shutil.copytree(scored_run, tmp_path / "run"))
    words = ["bakeoff", run_dir, "--trust", "--objectives"]  # for the run's template
    assert command(*words, "grpo").status == 0
    arm = run_dir / "bakeoff" / "stage-000" / "grpo" / "config.json"
    stored = json.loads(arm.read_text())
    stored["config"]["objective"] = {"name": "file", "path": str(folder / "their_code.py")}
    arm.write_text(json.dumps(stored))
    accepted(arm.parent)
    refused(command(*words, "grpo", "--force"), f"{UNKNOWN}objective.path")
    method = tmp_path / "method.toml"  # a config, so that it never asks
    method.write_text(f'objective = {{ name = "file", path = "{folder}/their_code.py" }}\n')
    assert not (folder / "ran").exists()
    words.remove("--trust")
    assert command(*words, method).status == 0
    assert (folder / "ran").exists()


def test_a_config_on_the_command_line_never_asks_wherever_it_lies(folder: Path, command: Command):
    """Neither in a clone with a remote, nor in the folder of a received run."""
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text('[remote "origin"]\n\turl = there\n')
    run_dir = received(folder, "task.rewards")
    for place in (folder, run_dir):
        config = shutil.copy(config_in(folder), place / "mine.toml")
        words = ["--run-dir", place / "mine", f"--objective.path={folder}/their_code.py"]
        assert command("generate", config, *words, "--objective.name=file").status == 0


@pytest.mark.long
def test_ranks_and_processes_of_ones_own_run_do_not_ask(tmp_path: Path):
    """A driver has checked what they run. They may be on machines without the user's home."""
    run_dir = tmp_path / "run"
    options = ["--distributed.processes", "2", "--engine.processes", "1"]
    config = write_config(tmp_path)
    ended = in_a_process("train", config, "--run-dir", run_dir, *options)
    assert ended.status == 0, ended


@pytest.fixture(params=["a file in its place", "no home"])
def no_state(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what says that approvals cannot be written."""

    def nobody(_: int) -> None:
        raise KeyError("uid not found")

    if request.param != "no home":
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "p.jsonl"))
        return f"{folder / 'p.jsonl'}/mugrpo/trusted cannot be written to (Not a directory)"
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return "cannot be written to (Not a directory)"


def test_ones_own_config_needs_no_folder_for_approvals(
    folder: Path, command: Command, no_state: str
):
    words = [config_in(folder), "--run-dir", folder / "run", "--task.rewards=their_code.py:judge"]
    generated = command("generate", *words)
    assert generated.status == 0, generated
    assert no_state in generated.out and "XDG_STATE_HOME" in generated.out


def test_without_a_folder_for_approvals_a_yes_holds_for_its_process(
    folder: Path, command: Command, no_state: str
):
    run_dir, ran = received(folder, "task.rewards"), folder / "ran"
    refused(command("score", run_dir), f"{run_dir} {UNKNOWN}task.rewards")
    assert not ran.exists()
    approved = command("train", run_dir, "--trust")
    assert no_state in approved.out and ran.exists()
    assert UNKNOWN not in command("train", run_dir).err  # in the same process
    trust._known.clear()
    refused(command("train", run_dir), f"{run_dir} {UNKNOWN}task.rewards")


def test_names_are_shown_and_never_sent_to_the_terminal(folder: Path, command: Command):
    odd = folder / "\x1b[2Jcode.py"
    shutil.copy(folder / "their_code.py", odd)
    run_dir = received(folder, "objective.path")
    stored = json.loads((run_dir / "config.json").read_text())
    stored["config"]["objective"]["path"] = str(odd)
    (run_dir / "config.json").write_text(json.dumps(stored))
    accepted(run_dir)
    refused(command("train", run_dir), "\\x1b[2Jcode.py")


def test_an_override_beside_it_approves_nothing(folder: Path, command: Command):
    """A file of the user's own changes a hash, and an entry of theirs a table: both still ask."""
    (folder / "mine.py").write_text("def add(a: int) -> int:\n    'Add.'\n    return a\n")
    their_code = folder / "their_code.py"
    their_code.write_text(f"import mine\n{their_code.read_text()}")
    words = [f"--environment.tools=['{folder}/mine.py:add']", "--prompt.form=chat"]
    words += [f"--prompt.chat_template={folder}/their_code.jinja"]
    refused(command("train", received(folder, "environment"), *words), f"{UNKNOWN}environment = ")
    shutil.rmtree(folder / "run")
    run_dir = received(
        folder, {"engine": {"name": "vllm", "arguments": {"worker_cls": "their.Worker"}}}
    )
    ended = command("train", run_dir, "--engine.arguments.max_num_batched_tokens=512")
    refused(ended, f"{UNKNOWN}engine.arguments = ", "their.Worker")
    assert not (folder / "ran").exists()


def test_the_question_hides_nothing_of_what_is_approved(folder: Path, command: Command):
    """Not even what looks like a password, before a host that is not the one connected to."""
    urls = ["http://a:b@127.0.0.1:9/@ours"]
    run_dir = received(folder, {"engine": {"name": "vllm_server", "urls": urls}})
    refused(command("train", run_dir), f"engine.urls = {urls[0]}")


def test_a_module_of_the_same_name_elsewhere_asks_and_force_does_not_answer(
    folder: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run_dir = received(folder, "task.rewards = their_code:judge")
    command("train", run_dir, "--trust")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(folder, elsewhere)
    monkeypatch.chdir(elsewhere)
    refused(command("train", elsewhere / "run"), f"{UNKNOWN}task.rewards = their_code:judge of ")
    (elsewhere / "their_code.py").write_text("raise SystemExit('theirs')\n")
    refused(command("train", elsewhere / "run", "--force"), f"{UNKNOWN}task.rewards", "--trust\n")


@pytest.mark.parametrize("odd", ["x", "/", "a\0b", "a" * 5000, "a\ud800"])
def test_a_name_that_no_file_can_have_ends_in_a_sentence(folder: Path, command: Command, odd: str):
    refused(command("train", received(folder, {"engine": {"name": "vllm", "python": odd}})))
