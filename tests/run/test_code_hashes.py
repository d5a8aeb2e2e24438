"""Which files a hash of a run's own code covers."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from mugrpo.config.load import load_config
from mugrpo.disk.publishing import sha256_of
from mugrpo.run.provenance import _rewards, _sums

DATA = ["--task.name=dataset", "--task.data=none.jsonl"]


def names(*overrides: str) -> dict[str, str]:
    """Return file or module -> hash of the rewards."""
    return _sums(_rewards(load_config(None, overrides).task))


def alone(file: Path) -> str:
    return hashlib.sha256(sha256_of(file).encode()).hexdigest()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_hash_covers_the_modules_beside_a_file_that_it_imports(here: Path):
    """judge.py imports a, which imports the package b; d.py and the folder above are not."""
    for name, text in {
        "judge.py": "import os, a\n",
        "a.py": "def f():\n    from b import c\n",
        "b/__init__.py": "from . import e\n",
        "b/c.py": "",
        "b/e.py": "import x\n",
        "d.py": "",
        "x.py": "",
    }.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)

    def hashes() -> list[str]:
        found = [names(*DATA, f"--task.rewards={place}:f") for place in ("judge.py", "judge")]
        return [sha256 for each in found for sha256 in each.values()]

    before = hashes()
    assert before[0] == before[1] and len(before) == 2
    (here / "d.py").write_text("changed\n")
    assert hashes() == before
    for name in ("a.py", "b/__init__.py", "b/c.py", "b/e.py", "judge.py", "x.py"):
        file = here / name
        text = file.read_text()
        file.write_text(text + "\n")
        assert before[0] not in hashes(), name
        file.write_text(text)
    assert hashes() == before


def test_a_hash_covers_what_a_reward_imports_from_the_folder_of_another(here: Path):
    """All rewards share a worker. A link leads to the folder whose modules its file imports."""
    (here / "sub").mkdir()
    (here / "sub" / "ok.py").write_text("def f(): import c\n")
    (here / "link.py").symlink_to(here / "sub" / "ok.py")
    (here / "sub" / "shared.py").write_text("")
    for name in ("judge", "module"):
        (here / f"{name}.py").write_text("import shared\n")

    def hashes(*rewards: str) -> list[str]:
        return list(names(*DATA, f"--task.rewards={list(rewards)}").values())

    apart = hashes("judge.py:g") + hashes("module:h")
    together = hashes("sub/ok.py:f", "judge.py:g", "module:h")
    linked = hashes("link.py:f")
    assert apart[0] not in together and apart[1] not in together
    (here / "sub" / "shared.py").write_text("changed\n")
    (here / "sub" / "c.py").write_text("")
    assert apart == hashes("judge.py:g") + hashes("module:h")
    changed = hashes("sub/ok.py:f", "judge.py:g", "module:h") + hashes("link.py:f")
    assert not set(changed) & {*together, *linked} and len(changed) == 4


def test_a_hash_covers_the_imports_of_a_module_in_a_folder_without_init(here: Path):
    (here / "part").mkdir()
    (here / "part" / "inner.py").write_text("from part import beside\n")
    (here / "part" / "beside.py").write_text("")
    (found,) = names(*DATA, "--task.rewards=part.inner:f").values()
    (here / "part" / "beside.py").write_text("changed\n")
    assert list(names(*DATA, "--task.rewards=part.inner:f").values()) != [found]


def test_a_module_is_found_without_importing_it(here: Path):
    (here / "package").mkdir()
    for name in ("__init__", "inner"):
        (here / "package" / f"{name}.py").write_text("raise SystemExit('imported')\n")
    (found,) = names(*DATA, "--task.rewards=package.inner:f").values()
    (here / "package" / "__init__.py").write_text("")
    assert list(names(*DATA, "--task.rewards=package.inner:f").values()) != [found]
