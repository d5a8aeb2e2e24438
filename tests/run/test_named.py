"""What a config names, and which files a hash covers."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from mugrpo.config.load import load_config
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import sha256_of
from mugrpo.run.named import named_by
from mugrpo.run.trust import remember, require_known

DATA = ["--task.name=dataset", "--task.data=none.jsonl"]


def names(*overrides: str) -> dict[str, str | None]:
    """Return option and text -> hash."""
    return {
        f"{one.option} = {one.text}": one.sha256 for one in named_by(load_config(None, overrides))
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_config_without_code_names_nothing():
    assert names() == names(*DATA) == names("--engine.name=vllm") == {}


def test_every_option_that_runs_something_is_named(here: Path):
    for name in ("mine.py", "judge.py", "chat.jinja", "restart.sh", "module.py"):
        (here / name).write_text(f"# {name}\n")
    found = names(
        "--objective.name=file",
        "--objective.path=mine.py",
        *DATA,
        "--task.rewards=['exact', 'judge.py:f', 'judge.py:g', 'module:h']",
        "--prompt.form=chat",
        "--prompt.chat_template=chat.jinja",
        "--engine.name=vllm_server",
        "--backend.name=ray",
        "--backend.address=10.0.0.1:6379",
    )
    assert found == {
        f"objective.path = {here}/mine.py": sha256_of(here / "mine.py"),
        f"prompt.chat_template = {here}/chat.jinja": sha256_of(here / "chat.jinja"),
        f"task.rewards = {here}/judge.py": sha256_of(here / "judge.py"),
        "task.rewards = module:h": sha256_of(here / "module.py"),
        "engine.urls = http://localhost:8000": "",
        "backend.address = 10.0.0.1:6379": "",
    }


def test_every_option_that_connects_to_another_machine_is_named(here: Path):
    (here / "game.py").write_text("class Game: ...\n")
    found = names(
        *DATA,
        "--task.rewards=[{name = 'code', url = 'http://sandbox'}]",
        "--environment.name=game.py:Game",
        "--environment.kwargs={server = 'http://games'}",
        "--distributed.machines=2",
        "--distributed.address=first:29500",
        "--sinks.wandb=team/project",
        "--sinks.trackio=project",
    )
    assert list(found) == [
        f"environment = {here}/game.py",
        "task.rewards.url = http://sandbox",
        'environment.kwargs = {"server": "http://games"}',
        "distributed.address = first:29500",
        "sinks.trackio = project",
        "sinks.wandb = team/project",
    ]


def test_an_interpreter_is_named_with_its_environment_and_vllms_arguments(here: Path):
    """Two environments may share one interpreter by links; `pyvenv.cfg` tells them apart."""
    python = here / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    words = ["--engine.name=vllm", f"--engine.python={python}"]
    alone = names(*words)
    (here / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert alone.keys() == names(*words).keys() == {f"engine.python = {python}"}
    assert alone != names(*words)
    assert list(names("--engine.name=vllm", "--engine.arguments={worker_cls = 'a.B'}")) == [
        'engine.arguments = {"worker_cls": "a.B"}'
    ]


def test_a_hash_covers_the_modules_beside_a_file_that_it_imports(here: Path):
    """judge.py imports a, which imports b.c, and x; d.py and the folder above are not imported."""
    for name, text in {
        "judge.py": "import os, a, x\n",
        "a.py": "def f():\n    from b import c\n",
        "b/__init__.py": "from . import e\n",
        "b/c.py": "",
        "b/e.py": "from . import y\n",
        "d.py": "",
        f"x{EXTENSION_SUFFIXES[0]}": "",
        f"b/y/__init__{EXTENSION_SUFFIXES[-1]}": "",
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
    extensions = (f"x{EXTENSION_SUFFIXES[0]}", f"b/y/__init__{EXTENSION_SUFFIXES[-1]}")
    for name in ("a.py", "b/__init__.py", "b/c.py", "b/e.py", "judge.py", *extensions):
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


def test_a_module_is_the_file_that_the_worker_will_import(here: Path):
    """The folders of rewards are searched in their order, the working directory for a module."""
    (here / "lib").mkdir()
    (here / "lib" / "judge.py").write_text("")
    (here / "lib" / "helpers.py").write_text("def score(**_): return [1.0]\n")
    (here / "helpers.py").write_text("def score(**_): return [0.0]\n")
    for first, second, folder in (
        ("lib/judge.py:f", "helpers:score", here / "lib"),
        ("helpers:score", "lib/judge.py:f", here),
    ):
        found = names(*DATA, f"--task.rewards={[first, second]}")
        assert found["task.rewards = helpers:score"] == sha256_of(folder / "helpers.py")


def test_a_module_that_only_running_code_can_find_is_never_known(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    """The finder of an editable install makes it known."""
    words = [*DATA, "--task.rewards=helpers:score"]
    assert list(names(*words).values()) == [None]
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "state"))
    config = load_config(None, words)
    remember(config, print)
    with pytest.raises(UsageError, match="found only when it runs"):
        require_known(config, config, "run", print, trust=False)
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "helpers.py").write_text("raise SystemExit('imported')\n")

    class Editable:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            file = here / "elsewhere" / f"{name}.py"
            return spec_from_file_location(name, file) if file.is_file() else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable])
    assert list(names(*words).values()) == [sha256_of(here / "elsewhere" / "helpers.py")]
