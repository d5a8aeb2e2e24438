"""The real wheel, and each extra alone, in environments of their own, as users install them.

`make test-wheel` runs these tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs import ROOT

pytestmark = pytest.mark.wheel

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"].keys() - {"test", "bench", "notebooks"}
TINY = [
    "--schedule.stages=1",
    "--schedule.batches_per_stage=2",
    "--schedule.problems_per_update=4",
    "--task.train_problems=8",
    "--task.eval_problems=8",
]
SMALL = """
[task]
train_problems = 8
eval_problems = 8
[schedule]
stages = 1
batches_per_stage = 2
problems_per_update = 4
"""
STUDY = """
title = "Two seeds"
question = "Does a study need a clone?"
base = "mine.toml"
seeds = [0, 1]
[axes.rate]
one = { optimizer.lr = 1e-4 }
"""

Run = Callable[..., subprocess.CompletedProcess[str]]  # of the command with its arguments


def starter(folder: Path, *python: object, **environment: object) -> Run:
    """Return a function that runs a command in `folder`, with one thread and a home of its own."""
    home = folder.parent / "home"
    own = {"XDG_STATE_HOME": home, "MUGRPO_CACHE": home, "OMP_NUM_THREADS": 1, **environment}
    merged = {**os.environ, **{name: str(value) for name, value in own.items()}}
    folder.mkdir()

    def start(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*map(str, python), *words]
        return subprocess.run(command, cwd=folder, env=merged, capture_output=True, text=True)

    return start


def use_the_commands(run: Run, folder: Path) -> None:
    """Use every command that a newcomer meets, in the empty `folder`."""

    def done(*words: str) -> str:
        ended = run(*words)
        assert (ended.returncode, ended.stderr) == (0, ""), ended
        return ended.stdout

    assert "packages   Python " in done("doctor")
    assert "  tapered-grpo " in done("objectives")
    assert done("vllm-env", "--help").startswith("usage: mugrpo vllm-env [-h] [FOLDER]\n")
    assert list(folder.iterdir()) == []
    assert "\n2 updates\n" in done("demo", *TINY)
    demo = folder / "runs" / "demo"
    assert json.loads((demo / "config.json").read_text())["config"]["optimizer"]["lr"] == 2e-4
    assert (demo / "checkpoints" / "update-000002").is_dir()
    assert done("report", "runs/demo") == "runs/demo/report.html\n"
    (folder / "mine.toml").write_text(SMALL)
    (folder / "study.toml").write_text(STUDY)
    done("study", "run", "study.toml", "--jobs", "1")
    assert "2 of 2 runs" in (folder / "results" / "study" / "README.md").read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if built := os.environ.get("WHEEL"):
        return ROOT / built
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*command, str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("mugrpo-*.whl")
    return wheel


def test_the_wheel_holds_every_tracked_file_of_the_package_and_nothing_else(wheel: Path):
    """Hatchling leaves out what .gitignore names, even if git tracks it."""
    command = ["git", "-C", str(ROOT), "ls-files", "src/mugrpo"]
    tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    files = {f"src/{name}" for name in names if name.startswith("mugrpo/")}
    assert files == set(tracked)
    assert all(name.startswith("mugrpo/") or ".dist-info/" in name for name in names)
    assert wheel.stat().st_size <= 7_000_000  # three embedded models have 2.1 MB each


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which only the wheel was installed."""
    folder = tmp_path_factory.mktemp("base") / "env"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install(folder, str(wheel))
    return folder


def install(environment: Path, requirement: str) -> None:
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", requirement], check=True)


def test_every_command_runs_where_only_the_wheel_is_installed(base: Path, tmp_path: Path):
    empty = tmp_path / "empty"
    use_the_commands(starter(empty, base / "bin" / "mugrpo", PYTHONPATH=""), empty)


CONFIG = """
preset = "tapered-grpo"
[task]
name = "dataset"
data = "problems.jsonl"
rewards = ["math"]
[schedule]
stages = 1
batches_per_stage = 1
problems_per_update = 2
"""
# Extra -> a use of it: words of a command, or code.
USES: dict[str, list[str] | str] = {
    "hub": "import datasets; print(datasets.Dataset.from_list([{'a': 1}])[0])",
    "lora": ["demo", *TINY, "--lora.rank=2"],
    "math": ["check", "mine.toml"],
    "qlora": ["demo", *TINY, "--lora.rank=2", "--lora.quantize=nf4"],
    "ray": "import ray.train.torch",
    "reasoning-gym": "import reasoning_gym; reasoning_gym.create_dataset('chain_sum', size=1)",
    "site": "import material, mkdocs.commands.build",
    "smollm2": "import accelerate, gguf",
    "tensorboard": ["demo", *TINY, "--sinks.tensorboard=true"],
    "trl": "import mugrpo.extensions.trl",
    "view": "import textual.app",
    "wandb": ["demo", *TINY, "--sinks.wandb=test"],
}


def test_every_extra_is_used():
    assert USES.keys() == EXTRAS


@pytest.mark.parametrize("extra", USES)
def test_an_extra_brings_what_its_use_needs(extra: str, wheel: Path, base: Path, tmp_path: Path):
    """The environment is the base's, with hard links in place of copies, and the extra."""
    copied = tmp_path / "env"
    subprocess.run(["cp", "-al", base, copied], check=True)
    install(copied, f"{wheel}[{extra}]")
    ended = use(extra, copied, tmp_path / "extra")
    assert ended.returncode == 0, ended
    if isinstance(USES[extra], list):
        refused = use(extra, base, tmp_path / "base")
        assert refused.returncode == 2 and f"mugrpo[{extra}]" in refused.stderr, refused


def use(extra: str, environment: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    offline = {"WANDB_MODE": "offline", "PYTHONPATH": ""}
    run = starter(folder / "empty", environment / "bin" / "python", "-P", **offline)
    rows = [json.dumps({"prompt": f"What is {n} + 1?", "answer": str(n + 1)}) for n in range(20)]
    (folder / "empty" / "problems.jsonl").write_text("\n".join(rows))
    (folder / "empty" / "mine.toml").write_text(CONFIG)
    words = USES[extra]
    return run("-c", words) if isinstance(words, str) else run("-m", "mugrpo", *words)
