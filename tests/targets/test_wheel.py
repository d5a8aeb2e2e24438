"""The real wheel, and each extra alone, in environments of their own, as users install them.

`make test-wheel` runs these tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.test_extras import EXTRAS
from tests.test_wheel import ROOT, TINY, packed, starter, use_the_commands

pytestmark = pytest.mark.wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if built := os.environ.get("WHEEL"):
        return ROOT / built
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*command, str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("mugrpo-*.whl")
    return wheel


def test_the_wheel_holds_what_the_other_tests_of_it_run(wheel: Path):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    files = {name for name in names if name.startswith("mugrpo/")}
    assert files == {file.as_posix() for file in packed()}
    assert all(".dist-info/" in name for name in names - files)
    assert wheel.stat().st_size <= 5_000_000


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
    "qlora": "import bitsandbytes, peft",
    "ray": "import ray.train.torch",
    "reasoning-gym": "import reasoning_gym; reasoning_gym.create_dataset('chain_sum', size=1)",
    "site": "import material, mkdocs.commands.build",
    "smollm2": ["convert", "smollm2"],
    "tensorboard": ["demo", *TINY, "--sinks.tensorboard=true"],
    "trackio": ["demo", *TINY, "--sinks.trackio=test"],
    "view": "import textual.app",
    "wandb": ["demo", *TINY, "--sinks.wandb=test"],
    "wasm": "from mugrpo.extensions.code.wasm import Wasm; Wasm(None, 5, 1 << 28)",
}


def test_every_extra_is_used():
    assert USES.keys() == EXTRAS.keys()


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
    offline = {"WANDB_MODE": "offline", "TRACKIO_DIR": folder / "trackio", "PYTHONPATH": ""}
    run = starter(folder / "empty", environment / "bin" / "python", "-P", **offline)
    rows = [json.dumps({"prompt": f"What is {n} + 1?", "answer": str(n + 1)}) for n in range(20)]
    (folder / "empty" / "problems.jsonl").write_text("\n".join(rows))
    (folder / "empty" / "mine.toml").write_text(CONFIG)
    words = USES[extra]
    return run("-c", words) if isinstance(words, str) else run("-m", "mugrpo", *words)
