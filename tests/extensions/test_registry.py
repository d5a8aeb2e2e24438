"""Extensions are found, add what they say, and can be deleted: nothing else breaks."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mugrpo
from mugrpo.config.base import installed
from tests.runs import ENVIRONMENT, read_metrics, write_config

SOURCE = Path(mugrpo.__file__).parent
EXAMPLE = Path(__file__).parents[2] / "examples" / "extension"
TRAINS = [False, pytest.param(True, marks=pytest.mark.long)]

# A process that has these sources alone reads a config, and trains it if there is a folder.
PROGRAM = """
import sys
import mugrpo.arguments
from mugrpo.config.base import installed
from mugrpo.config.load import load_config
from mugrpo.config.run import RunConfig
from mugrpo.__main__ import main
config, folder, *words = sys.argv[1:]
print(sorted(installed()), sorted(RunConfig.choices()))
mugrpo.arguments.parser()
load_config(config, words)
if folder:
    sys.argv = ["mugrpo", "train", config, "--run-dir", folder, *words]
    sys.exit(main())
"""


def ran(sources: list[Path], config: Path, run_dir: Path | None, *words: str) -> str:
    """Return what the program says. It trains if it is given a `run_dir`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))}
    command = [sys.executable, "-P", "-c", PROGRAM, str(config), str(run_dir or ""), *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def copied(tmp_path: Path) -> Path:
    copy = tmp_path / "copy" / "mugrpo"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.mark.parametrize("trains", TRAINS)
def test_without_any_extension_the_core_trains(tmp_path: Path, trains: bool):
    core = copied(tmp_path)
    shutil.rmtree(core / "extensions")
    run_dir = tmp_path / "run" if trains else None
    said = ran([core.parent], write_config(tmp_path), run_dir, "--schedule.stages=1")
    assert said.startswith("[]")


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(installed()))
def test_an_extension_can_be_deleted(tmp_path: Path, name: str):
    core = copied(tmp_path)
    place = core / "extensions" / name
    shutil.rmtree(place) if place.is_dir() else place.with_suffix(".py").unlink()
    said = ran([core.parent], write_config(tmp_path), tmp_path / "run", "--schedule.stages=1")
    assert f"'{name}'" not in said.splitlines()[0] and len(installed()) > 1


@pytest.mark.parametrize("trains", TRAINS)
def test_a_package_of_ones_own_adds_an_objective_and_a_reward(tmp_path: Path, trains: bool):
    """The example's entry point is read from metadata, as pip writes it."""
    metadata = tmp_path / "site" / "mugrpo_short-0.1.dist-info"
    metadata.mkdir(parents=True)
    shutil.copy(EXAMPLE / "mugrpo_short.py", tmp_path / "site")
    (metadata / "METADATA").write_text("Name: mugrpo-short\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text(
        "[mugrpo.extensions]\nshort = mugrpo_short:extension\n"
    )
    rows = [{"prompt": f"{a}+{b}=", "answer": "0"} for a in range(1, 6) for b in range(1, 6)]
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--objective.name=power", "--objective.power=0.25", "--schedule.stages=1"]
    words += ["--task.name=dataset", f"--task.data={data}", "--task.rewards=['short']"]
    sources, run_dir = [SOURCE.parent, tmp_path / "site"], tmp_path / "run" if trains else None
    said = ran(sources, write_config(tmp_path), run_dir, *words)
    assert "'short'" in said.splitlines()[0]
    if not trains:
        return
    lines = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "refresh"]
    assert [line["rewards/short/mean"] for line in lines] == [1.0]  # at most 8 tokens each


@pytest.mark.long
def test_the_local_backend_imports_no_ray():
    words = "import sys, mugrpo.pipeline, mugrpo.hosts.ranks; assert 'ray' not in sys.modules"
    environment = {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"], "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", words], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
