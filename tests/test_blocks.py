"""Every code block of the pages: it runs, is loaded or is parsed by what reads it, or says why not.

A page is a folder: files that it names are written there, and its Python runs there in order.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mugrpo.arguments import parser
from mugrpo.cli import main
from mugrpo.config.describe import describe
from mugrpo.config.load import build_config, load_config
from mugrpo.config.preset import PRESETS
from mugrpo.extensions.evals.options import load_suites
from mugrpo.extensions.lab.study.spec import load_study
from tests.blocks import ELSEWHERE, PAGES, Block, blocks, commands
from tests.runs import ROOT
from tests.test_extras import PROJECT

BLOCKS = [block for page in PAGES if page not in ELSEWHERE for block in blocks(page)]
LIVE = [block for block in BLOCKS if not block.reason]
SLOW_TO_IMPORT = ("README.md", "docs/trl.md")  # torch, TRL
READ_BY_A_PERSON = ("cd", "ruff", "mypy", "torchrun", "eval", ".")
CHEAP = ("completion", "objectives", "schema")
DATA = {"name": "dataset", "data": "problems.jsonl"}
PARSER = parser()
WHOLE = ("docs/start.md", "docs/offline.md")  # docs/exchange.md: tests/tools/test_importing.py


def of(kind: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in LIVE if block.kind == kind]


def files_of(page: str, folder: Path) -> Path:
    """Write the files that a page names into `folder`."""
    for block in blocks(page):
        if block.file and not block.reason:
            (folder / block.file).write_text(block.text.replace("\n...\n", "\n"))
    return folder


def test_no_block_is_left_out_without_a_reason():
    kinds = {"python", "toml", "data", "shell"}
    assert [str(block) for block in BLOCKS if block.kind not in kinds and not block.reason] == []
    assert {block.kind for block in LIVE} == kinds and len(LIVE) > 30


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_the_blocks_of_other_pages_are_read_by_a_test_of_their_own(page: str, test: str):
    assert Path(page).name in (ROOT / test).read_text()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] if page in SLOW_TO_IMPORT else [])
        for page in dict.fromkeys(block.page for block in LIVE if block.kind == "python")
    ],
)
def test_the_python_of_a_page_runs_in_order(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(files_of(page, tmp_path))
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.kind == "python" and not block.reason:
            exec(compile(block.text, str(block), "exec"), names)
    assert len(names) > 1


@pytest.mark.parametrize("block", of("toml"))
def test_a_config_is_loaded(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Options that a block leaves out have their defaults, and a task gets a data set."""
    monkeypatch.chdir(files_of(block.page, tmp_path))
    raw = tomllib.loads(block.text)
    if "axes" in raw:
        Path("block.toml").write_text(block.text)
        Path(raw["base"]).touch()
        study, cells = load_study(Path("block.toml"))
        assert study.title == raw["title"] and len(cells) == 2 * len(raw["seeds"])
        return
    if "title" in raw:
        Path("block.toml").write_text(block.text)
        assert [suite.options.title for suite in load_suites("block.toml")]
        return
    own = raw.get("task", {})
    base = DATA if own.get("name", "dataset") == "dataset" else {}
    task = {"task": {**base, **own}} if own else {}
    config = build_config({**raw, **task}, str(block)).model_dump()
    for name, value in raw.items():
        if isinstance(value, dict):
            assert value.keys() <= config[name].keys()
        else:
            assert config[name] == value


def test_the_example_on_verl_has_the_numbers_of_its_table_and_real_options():
    """1024 prompts in batches of 256, twice: 8 updates a stage, 800 in 100; 256 x 5 responses."""
    [block] = [block for block in blocks("docs/verl.md") if block.kind == "toml"]
    schedule = build_config(tomllib.loads(block.text), str(block)).schedule
    assert schedule.total_updates == 800
    assert schedule.problems_per_update * schedule.group_size == 1280
    rows = (ROOT / "docs/verl.md").read_text().partition("### Option by option")[2].splitlines()
    ours = [row.split(" | ")[1] for row in rows if row.startswith("| `")]
    named = {name for cell in ours for name in re.findall(r"`([a-z_]+\.[a-z_]+)", cell)}
    assert len(named) > 25 and named <= {option.name for option in describe()}


@pytest.mark.parametrize("block", of("shell"))
def test_every_command_of_a_block_is_one(
    block: Block, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    files_of(block.page, tmp_path)
    for words in commands(block.text):
        check(words, tmp_path)


def check(words: list[str], folder: Path) -> None:
    """Raise if a command is not understood by what it calls."""
    program, *rest = words
    if inner := re.fullmatch(r"\$\((.+)\)", rest[0] if rest else ""):
        check(inner[1].split(), folder)
    elif program == "mugrpo" or "mugrpo" in rest:
        understood([program, *rest][words.index("mugrpo") + 1 :], folder)
    elif program == "make":
        command = ["make", "--dry-run", *rest]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    elif program == "pip":
        extras = {name for word in rest for name in re.findall(r"\[(\w+)\]", word)}
        assert extras <= PROJECT["optional-dependencies"].keys()
    elif program in ("python", "pytest"):
        paths = [word for word in rest if "/" in word or word.endswith(".py")]
        assert paths and all((folder / p).exists() or (ROOT / p).exists() for p in paths)
    else:
        assert program in READ_BY_A_PERSON, words


def understood(words: list[str], folder: Path) -> None:
    """Parse a command of mugrpo, resolve its options, and run it if that is cheap."""
    try:
        options, overrides = PARSER.parse_known_args([word for word in words if word != "..."])
    except SystemExit as end:  # --help and --version print and end
        if end.code:
            raise
        return
    assert options.takes_overrides or not overrides
    if options.takes_overrides:
        target = options.targets[0] if "targets" in options else options.target
        named = [place / target for place in (folder, ROOT)]
        file = next((path for path in named if path.is_file()), None)
        given = ["--task.data", "problems.jsonl"] if options.command == "import" else []
        load_config(file, [*overrides, *(given if file else [])])
    for method in (vars(options).get("objectives") or "").split(","):
        assert method in ("", "all", *PRESETS) or method.endswith(".toml")
    if options.command in CHEAP:
        assert main(words) == 0


@pytest.mark.long
@pytest.mark.parametrize("page", WHOLE)
def test_a_page_does_what_it_says_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(files_of(page, tmp_path))
    for block in blocks(page):
        if block.kind == "python" and not block.file.startswith("rewards"):
            exec(compile(block.text, str(block), "exec"), {})
        if block.kind == "shell" and not block.reason:
            for program, *words in commands(block.text):
                assert program != "mugrpo" or main(words) == 0, words
    said = "".join(capsys.readouterr())
    gains = re.findall(r"^accuracy +(\S+) .* before, (\S+) ", said, re.MULTILINE)
    assert gains or re.search(r"^accuracy: 0\.\d+$", said, re.MULTILINE)
    assert all(float(after) > float(before) + 0.05 for before, after in gains)
