"""The hash of the code covers what decides a run's numbers, and nothing else."""

import json
import shutil
from pathlib import Path

import pytest

from mugrpo.config.load import load_config
from mugrpo.disk.publishing import sha256_of
from mugrpo.run.provenance import _rewards, _sums, code_sha256

SOURCE = Path(__file__).parents[2] / "src" / "mugrpo"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "mugrpo"
    return Path(shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("*.safetensors")))


def changed(copy: Path, file: str, old: str, new: str) -> bool:
    """Return whether the hash changes if `old` becomes `new` in `file`."""
    path = copy / file
    text = path.read_text()
    assert text.count(old) >= 1, file
    path.write_text(text.replace(old, new, 1))
    code_sha256.cache_clear()
    other = code_sha256(copy)
    path.write_text(text)
    code_sha256.cache_clear()
    return other != code_sha256(copy)


@pytest.mark.parametrize(
    ("file", "decides"),
    [("optimize/ratios.py", True), ("extensions/code/cases.py", True), ("report/page.py", False)],
)
def test_code_that_decides_numbers_counts(copy: Path, file: str, decides: bool):
    assert changed(copy, file, "import", "import  ") == decides


def names(reward: str) -> dict[str, str]:
    """Return file or module -> hash of a reward."""
    data = ["--task.name=dataset", "--task.data=none.jsonl", f"--task.rewards={reward}"]
    return _sums(_rewards(load_config(None, data).task))


def test_the_file_that_an_option_names_is_hashed_and_never_imported(tmp_path, monkeypatch):
    """Not what it imports. A module is looked for in the working directory last, as workers do."""
    monkeypatch.chdir(tmp_path)
    for name in ("judge.py", "package/__init__.py", "package/inner.py", "json.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"raise SystemExit('{name}')\n")
    judge, inner = tmp_path / "judge.py", tmp_path / "package" / "inner.py"
    assert names("judge.py:f") == {str(judge): sha256_of(judge)}
    assert names("judge:f") == {"judge": sha256_of(judge)}
    package = sha256_of(tmp_path / "package" / "__init__.py")
    assert names("package.inner:f") == {"package.inner": f"{package} {sha256_of(inner)}"}
    assert names("package:f") == {"package": package}
    assert names("json:f") == {"json": sha256_of(Path(json.__file__))}
    (tmp_path / "<judge.py").write_text("")
    assert names("<judge.py:f") == {str(tmp_path / "<judge.py"): sha256_of(tmp_path / "<judge.py")}
    assert len(names("fractions:f")["fractions"]) == 64 and names("nowhere:f") == {}
