"""CONTRIBUTING.md's objective, added to a copy of the package by the page's own blocks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
_BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)

CHANGED = [
    "src/mugrpo/optimize/objectives/sapo.py",
    "src/mugrpo/config/objectives.py",
    "tests/optimize/test_sapo.py",
    "tests/optimize/test_bandit.py",
    "tests/optimize/test_objective_properties.py",
    "src/mugrpo/config/presets/sapo.toml",
]


def blocks() -> Iterator[tuple[str, str]]:
    """Yield (language, text) of the page's fenced blocks."""
    return ((language, textwrap.dedent(text)) for language, text in _BLOCK.findall(PAGE))


def apply(root: Path) -> list[str]:
    """Write the page's files below `root` and make its edits; return their paths."""
    paths = []
    for language, text in blocks():
        if language == "diff":
            for part in re.split(r"^--- ", text, flags=re.MULTILINE)[1:]:
                path, _, edits = part.partition("\n")
                file = root / path
                file.write_text(edited(file.read_text(), edits))
                paths.append(path)
        else:
            first, _, rest = text.partition("\n")
            paths.append(first.removeprefix("# "))
            (root / paths[-1]).write_text(rest)
    return paths


def edited(text: str, edits: str) -> str:
    """Return `text` after hunks without line numbers. Old lines must occur in it exactly once."""
    for hunk in edits.split("@@\n"):
        lines = hunk.splitlines()
        old = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+")
        new = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
        assert f"\n{text}".count(f"\n{old}") == 1, old
        text = f"\n{text}".replace(f"\n{old}", f"\n{new}")[1:]
    return text


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and its tests with the page's objective."""
    root = tmp_path_factory.mktemp("copy")
    for name in ("src", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", root)
    assert apply(root) == CHANGED
    return root


def run(copy: Path, *words: str) -> str:
    """Run Python in the copy, and return what it prints."""
    paths = os.pathsep.join([str(copy / "src"), str(copy)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


SCRIPT = """
import torch
from pathlib import Path
import mugrpo
assert Path(mugrpo.__file__).is_relative_to(Path.cwd()), mugrpo.__file__
from mugrpo.cli import main
from mugrpo.config.load import load_config
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.reduction import denominator, reduced_loss
from tests.updates import hand_batch

assert main(["objectives"]) == 0
config = load_config(None, ["--preset=sapo", "--objective.negative=2"])
mask = torch.tensor([[True, True], [True, False]])
ratios = torch.tensor([[1.0, 2.0], [0.5, 1.0]], dtype=torch.float64)
behavior = torch.full_like(ratios, -2.0)
batch = hand_batch(behavior, torch.tensor([1.0, -3.0], dtype=torch.float64), mask)
losses, _ = UpdateLoss.of(config)(batch, behavior + ratios.log(), {})
divisor = denominator(config.reduction, tokens=3, responses=2, max_new_tokens=48)
print(f"loss {reduced_loss(losses, mask, config.reduction, divisor).item():.6f}")
"""


def test_the_objective_is_listed_and_has_the_loss_worked_out_by_hand(copy: Path):
    """Token losses -2 and -4 s(1) = -2.924234, and (4 / 2) s(-1) 3 = 1.613649, see test_sapo.

    The preset weights responses equally: ((-2 - 2.924234) / 2 + 1.613649) / 2 = -0.424234.
    """
    said = run(copy, "-c", SCRIPT)
    assert re.search(r"^  sapo +SAPO \(arXiv 2511\.20347\)", said, re.MULTILINE)
    assert '  name = "sapo"  A sigmoid of the ratio' in said
    assert "positive  float > 0  (default 1.0)" in said
    assert said.splitlines()[-1] == "loss -0.424234"


@pytest.mark.long
def test_the_pages_tests_and_those_of_every_objective_pass_with_it(copy: Path):
    words = ("-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-k", "sapo or closed_form")
    said = run(copy, *words, "tests/optimize", "tests/config")
    assert int(re.findall(r"(\d+) passed", said)[-1]) > 50


def test_the_pages_code_passes_ruff(copy: Path):
    ruff = Path(sys.executable).with_name("ruff")
    files = [path for path in CHANGED if path.endswith(".py")]
    for words in (["check"], ["format", "--check"]):
        ended = subprocess.run([ruff, *words, *files], cwd=copy, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout
