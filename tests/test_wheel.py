"""The wheel alone suffices: what is in it, and that its commands need nothing else.

These tests run copies of the files that hatchling packs, in an environment that has only what the
wheel requires. `make test-wheel` installs the real wheel.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from pathspec import GitIgnoreSpec

from tests.clean import environment
from tests.test_layers import FILES, HOUSE, module_of

ROOT = HOUSE.parents[1]
# Folders of a clone and paths in them. (Cells of a study run in runs/studies, and a run's results
# of suites are in its folder benchmarks.)
OUTSIDE = re.compile(
    r"(?:benchmarks(?=/)|configs|docs|examples|scripts|studies(?=/)|tests)(/[\w./-]*)?"
)
FROM_HERE = re.compile(r"Path\(__file__\)(?:\.resolve\(\))?\.(?:parents\[(\d)\]|parent|with_name)")
TINY = [
    "--schedule.stages=1",
    "--schedule.batches_per_stage=2",
    "--schedule.problems_per_update=4",
    "--task.train_problems=8",
    "--task.eval_problems=8",
]
CONFIG = """
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


def packed() -> list[Path]:
    """Return what the wheel gets, relative to src: the package without what git ignores."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert options["targets"]["wheel"] == {"packages": ["src/mugrpo"]}
    ignored = GitIgnoreSpec.from_lines((ROOT / ".gitignore").read_text().splitlines())
    files = [file for file in sorted(HOUSE.rglob("*")) if file.is_file()]
    kept = [file for file in files if not ignored.match_file(file.relative_to(ROOT))]
    return [file.relative_to(HOUSE.parent) for file in kept]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel gets, and nothing else."""
    site = tmp_path_factory.mktemp("site")
    for file in packed():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HOUSE.parent / file, site / file)
    return site


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
    model = folder.parent / "home" / "models" / "SmolLM2-135M-Instruct"
    model.mkdir(parents=True)  # so that nothing is downloaded
    assert done("convert", "smollm2") == f"{model}\n"
    assert "\n2 updates\n" in done("demo", *TINY)
    demo = folder / "runs" / "demo"
    assert json.loads((demo / "config.json").read_text())["config"]["optimizer"]["lr"] == 2e-4
    assert (demo / "checkpoints" / "update-000002").is_dir()
    assert done("report", "runs/demo") == "runs/demo/report.html\n"
    (folder / "mine.toml").write_text(CONFIG)
    (folder / "study.toml").write_text(STUDY)
    done("study", "run", "study.toml", "--jobs", "1")
    assert "2 of 2 runs" in (folder / "results" / "study" / "README.md").read_text()


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_a_module_looks_for_files_within_the_package_only(file: Path):
    source = file.read_text()
    found = list(FROM_HERE.finditer(source))
    assert len(found) == source.count("__file__")
    depth = len(file.relative_to(HOUSE).parts)
    assert all(int(up[1] or 0) < depth for up in found)
    constants = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    assert [text for node in constants if OUTSIDE.fullmatch(text := str(node.value))] == []


def test_hatchling_packs_every_tracked_file_of_the_package():
    """It leaves out what .gitignore names, even if git tracks it."""
    command = ["git", "-C", str(ROOT), "ls-files", "src/mugrpo"]
    tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    files = {f"src/{file}" for file in packed()}
    assert {name for name in tracked if (ROOT / name).exists()} <= files
    assert not any("__pycache__" in file for file in files)


def test_the_wheel_has_at_most_5_mb(site: Path, tmp_path: Path):
    archive = shutil.make_archive(str(tmp_path / "wheel"), "zip", site)
    assert os.path.getsize(archive) <= 5_000_000


def test_the_package_in_a_folder_of_its_own_is_the_one_that_runs(site: Path, tmp_path: Path):
    """The tests' environment has a clone's package too."""
    run = starter(tmp_path / "empty", sys.executable, "-P", PYTHONPATH=site)
    code = "import mugrpo.arguments as a; print(a.__file__); a.parser().parse_args()"
    told = run("-c", code, "vllm-env", "--help")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith(f"{site}/mugrpo/arguments.py\nusage: mugrpo vllm-env ")


@pytest.mark.long
def test_every_command_runs_from_the_wheels_files_alone(site: Path, tmp_path: Path):
    python = environment(tmp_path / "env")
    command = [python, "-P", "-m", "mugrpo"]
    use_the_commands(starter(tmp_path / "empty", *command, PYTHONPATH=site), tmp_path / "empty")


def test_an_environment_of_the_wheel_lacks_what_only_tests_and_extras_need(tmp_path: Path):
    code = "import importlib.util as u; print(*(n for n in %r if u.find_spec(n)))"
    names = ("peft", "accelerate", "trl", "pytest", "mugrpo", "torch", "transformers")
    run = starter(tmp_path / "empty", environment(tmp_path / "env"), PYTHONPATH="")
    assert run("-c", code % (names,)).stdout == "torch transformers\n"


def test_what_make_smollm2_installs_can_read_gguf_and_judge_mathematics(tmp_path: Path):
    code = (
        "import accelerate, gguf, transformers.modeling_gguf_pytorch_utils, math_verify; "
        "print(math_verify.verify(math_verify.parse('$1/2$'), math_verify.parse('$0.5$')))"
    )
    python = environment(tmp_path / "env", "math", "smollm2")
    assert starter(tmp_path / "empty", python, PYTHONPATH="")("-c", code).stdout == "True\n"
