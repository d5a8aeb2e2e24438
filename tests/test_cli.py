"""The command line: what it imports, and how it refuses what it does not know."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mugrpo.arguments import DEMO
from tests.faults.harm import contents, refused, resume_words, stopped
from tests.runs import Command, checkpoints, final_weights, mugrpo, read_metrics, write_config

# What needs no model in one process, the lightest first: after each, nothing heavier is imported.
LIGHT = """
import contextlib, io, sys
from pathlib import Path
def without(*heavy):
    if found := {"torch", "transformers", *heavy} & sys.modules.keys():
        sys.exit(f"imported {found}")
from mugrpo.cli import main
[run] = sys.argv[1:]
with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
    main(["train", "--help", "all"])
assert said.getvalue().startswith("usage: mugrpo train ")
from mugrpo.extensions.evals.options import load_suites
load_suites("math")
without("pyarrow", "safetensors", "datasets", "altair")
import mugrpo.report
without("altair", "vl_convert")
from mugrpo.extensions.view.rollouts import Rollouts
Rollouts(Path(run)).open(0)
without("textual")
import mugrpo.report.page
assert "altair" in sys.modules
without()
"""


def test_what_needs_no_model_imports_neither_torch_nor_transformers(reference: Path):
    words = [sys.executable, "-c", LIGHT, reference]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


WITHOUT_TORCH = """
import sys
class End:
    def find_spec(self, name, *_):
        if name == "torch":
            sys.exit(7)
sys.meta_path.insert(0, End())
from mugrpo.run import progress
HEAVY = {"transformers", "pyarrow", "altair", "datasets", "peft", "sympy"}
class Counted(progress.Progress):
    def say(self, sentence):
        print(len(sys.modules), HEAVY & sys.modules.keys(), sep="\\n")
        super().say(sentence)
progress.Progress = Counted
from mugrpo.cli import main
main(sys.argv[1:])
"""


def test_the_first_line_of_a_run_says_what_is_loading_before_torch_is(tmp_path: Path):
    """The process stops at its first import of torch, which takes seconds. What else takes seconds
    waits too: 423 modules were counted before the line, most of them small parts of a few."""
    config = write_config(tmp_path)
    words = [sys.executable, "-c", WITHOUT_TORCH, "train", config]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    count, heavy, *said = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (7, "")
    assert said == [f"{config}: loading PyTorch, then the tokenizer"]
    assert heavy == "set()" and int(count) < 600


@pytest.mark.long
def test_demo_goes_on_with_the_packaged_configs_run_and_can_be_stopped_and_resumed(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    text = "--schedule.stages=1 --schedule.batches_per_stage=2 --schedule.problems_per_update=4"
    words = f"{text} --task.train_problems=8 --task.eval_problems=8 --evaluation.every=0".split()
    assert command("generate", DEMO, *words).status == 0
    shards = contents(tmp_path / "runs" / "demo" / "stages" / "000" / "rollouts")
    place = ["--run-dir", str(tmp_path / "runs" / "demo")]
    told = mugrpo("demo", *place, *words, at="gradient", act="SIGTERM")
    stopped(told, "stopped by SIGTERM")
    assert resume_words(told) == ["demo", *place, *words]
    ended = command("demo", *words)  # the same place without being told
    assert ended.status == 0 and "\n2 updates\n" in ended.out
    assert contents(tmp_path / "runs" / "demo" / "stages" / "000" / "rollouts") == shards
    refused(command("demo", *words, "--seed=1"), "runs/demo was started differently")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("trian mine.toml", "there is no command 'trian'; try: mugrpo train"),
        ("train", "required: CONFIG|RUN; write, for example: mugrpo train mine.toml"),
        ("train --schedule.stages 2", "2: there is no such config file"),
        ("generate runs/mine --stage two", "invalid int value: 'two'; write, for example: "),
        ("--force", "--force needs a command before it"),
    ],
)
def test_words_that_are_no_command_are_answered_with_one(command, words, sentence):
    refused(command(*words.split()), sentence)


def test_output_into_a_closed_pipe_ends_quietly():
    """`head -1` reads one line and goes."""
    script = f"{sys.executable} -m mugrpo train --help all | head -1"
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert ended.stderr == "" and len(ended.stdout.splitlines()) == 1


def test_characters_that_a_terminal_obeys_are_shown_instead(tmp_path, run_dir, command):
    """ESC [2J clears a screen, BEL rings, U+202E writes from right to left."""
    ended = command("train", tmp_path / "\x1b[2Jmine\x07.toml")
    assert ended.status == 2 and "\\x1b[2Jmine\\x07.toml" in ended.err
    (run_dir / "lock").write_text("pid 1 \x1b]0;owned\x07\u202e\r")
    ended = command("train", run_dir)
    assert ended.status == 0 and "pid 1 \\x1b]0;owned\\x07\\u202e" in ended.out
    for stream in (ended.out, ended.err):
        assert not set(stream) & set("\x1b\x07\r\u202e")


@pytest.mark.long
def test_a_phase_that_is_run_too_early_names_the_one_to_run_first(tmp_path: Path, command: Command):
    run_dir = tmp_path / "run"
    words = [write_config(tmp_path), "--run-dir", run_dir]

    def first(phase: str, sentence: str, *option: object) -> None:
        refused(command(phase, *words, *option), sentence)

    before = f"{run_dir}/checkpoints/update-000003 does not exist yet: optimize the"
    first("generate", before, "--stage", 1)
    for phase in ("score", "optimize"):
        lacks = f"has 0 of 3 shards of rollouts; run `mugrpo generate {run_dir} --stage 0`"
        first(phase, lacks, "--stage", 0)
    assert command("generate", *words, "--stage", 0).status == 0
    lacks = f"has 0 of 3 shards of scores; run `mugrpo score {run_dir} --stage 0`"
    first("optimize", lacks, "--stage", 0)
    for stage in (2, -1):
        first("generate", f"--stage {stage}: the run has stages 0 to 1", "--stage", stage)
    first("evaluate", "--update 4 has no checkpoint", "--update", 4)
    assert command("score", *words).status == command("optimize", *words).status == 0
    assert checkpoints(run_dir) == [2, 3]
    first("score", f"run `mugrpo generate {run_dir} --stage 1` first", "--stage", 1)


def test_train_after_an_extra_evaluation_ends_in_the_same_bits(run_dir, command, reference):
    assert command("evaluate", run_dir).status == 0
    assert command("train", run_dir).status == 0
    assert final_weights(run_dir) == final_weights(reference)
    lines = read_metrics(run_dir)
    extra = [line for line in lines if (line["kind"], line["update"]) == ("evaluation", 4)]
    assert len(extra) == 1
    lines.remove(extra[0])
    assert lines == read_metrics(reference)


def test_ctrl_c_during_the_first_imports_leaves_no_traceback():
    words = [sys.executable, "-X", "importtime", "-m", "mugrpo", "train"]
    # In a small pipe, the command waits for the reader, and cannot end before the signal.
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, pipesize=4096) as command:
        assert command.stderr is not None
        said = iter(command.stderr)
        while "mugrpo.processes.lifetime" not in next(said):
            pass
        command.send_signal(signal.SIGINT)
        assert "Traceback" not in "".join(said)
    assert command.returncode == -signal.SIGINT
