"""What the pages, the examples and the notebooks show a user works; links lead somewhere.

A page is a folder: files that it names are written there, and its Python runs there in order.
"""

import ast
import os
import re
import runpy
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mugrpo.arguments import DEMO, parser
from mugrpo.cli import main
from mugrpo.config.load import build_config, load_config
from mugrpo.config.run import RunConfig
from mugrpo.extensions.evals.options import load_suites
from mugrpo.extensions.lab.study.spec import load_study
from mugrpo.extensions.slurm.settings import read_settings
from tests.blocks import ELSEWHERE, PAGES, Block, blocks, commands
from tests.runs import ENVIRONMENT, ROOT, read_metrics

BLOCKS = [
    block for page in PAGES if page not in ELSEWHERE for block in blocks(page) if not block.reason
]
CONFIGS = sorted(
    [
        DEMO,
        *ROOT.glob("configs/**/*.toml"),
        *ROOT.glob("examples/*/[!p]*.toml"),  # a package has a pyproject.toml
        *ROOT.glob("studies/base/*.toml"),
    ]
)
OWN_PROBLEMS = ROOT / "examples" / "own_problems"
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def files_of(page: str, folder: Path) -> Path:
    """Write the files that a page names into `folder`."""
    for block in blocks(page):
        if block.file and not block.reason:
            (folder / block.file).write_text(block.text.replace("\n...\n", "\n"))
    return folder


def of(kind: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind == kind]


def test_committed_configs_load_and_differ_from_the_defaults(monkeypatch: pytest.MonkeyPatch):
    assert len(CONFIGS) > 10
    for file in CONFIGS:
        monkeypatch.chdir(file.parent if "examples" in file.parts else ROOT)
        assert load_config(file) != RunConfig()
    for file in ROOT.glob("studies/*.toml"):
        load_study(file)


def test_links_within_the_project_lead_somewhere():
    broken = [
        f"{page}: {link}"
        for page in PAGES
        for link in _LINK.findall((ROOT / page).read_text())
        if "://" not in link and not _is_there(ROOT / page, link)
    ]
    assert broken == []


def test_the_page_of_results_has_every_study():
    page = (ROOT / "docs" / "results.md").read_text()
    for study in ROOT.glob("studies/results/*/README.md"):
        name = study.parent.name
        assert f"| [{name}](../studies/results/{name}/README.md) |" in page


def test_the_reference_is_what_the_code_says_and_has_every_key_of_a_runs_metrics(reference: Path):
    kinds = tomllib.loads((ROOT / "src" / "mugrpo" / "disk" / "metrics.toml").read_text())
    patterns = {
        kind: [p for keys in table for p in keys.split(", ")] for kind, table in kinds.items()
    }
    lines = read_metrics(reference)
    assert {line["kind"] for line in lines} == {"refresh", "update", "evaluation"}
    for line in lines:
        for key in line:
            known = patterns["every line"] + patterns[line["kind"]]
            assert any(fnmatch(key, pattern) for pattern in known), (line["kind"], key)
    script = runpy.run_path(str(ROOT / "scripts" / "reference_page.py"))
    assert script["PAGE"].read_text() == script["page"](), "run python scripts/reference_page.py"


# Blocks of code, which are no prose; and what looks like an identifier, a dotted name or a path.
_CODE = re.compile(r"^ *```(?s:.*?)^ *```$|^(?: {4}.*\n)+", re.MULTILINE)
_NAME = re.compile(r"\w+(\.\w+)*|[\w./-]*/[\w./-]+|[\w-]+\.(py|toml|md)")


@cache
def source() -> tuple[frozenset[str], str]:
    """Return the names that the source and its tests define, and all paths, a line each. Names are
    those of modules, classes, functions, arguments, variables, public attributes and pytest marks,
    and texts, such as names of metrics and files."""
    marks = re.findall(r'^  "(\w+): ', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    names = {"pytest", "mark", *marks}
    for file in (f for place in ("src", "tests", "scripts") for f in (ROOT / place).rglob("*.py")):
        names.add(file.stem)
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                    names.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.Constant(value=str(name)):
                    names.add(name)
                case ast.Attribute(attr=name, ctx=ast.Store()) if not name.startswith("_"):
                    names.add(name)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    return frozenset(names), "".join(f"/{path}\n" for path in listed.splitlines())


def exists(name: str) -> bool:
    """Return whether the source has the name or path; NAME stands for one that is to come."""
    names, paths = source()
    if name in names or names.issuperset(name.split(".")):
        return True
    path = name.partition("NAME")[0].rpartition("/")[0] if "NAME" in name else name
    return any(f"/{path}{end}" in paths for end in ("/", "\n"))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_names_of_a_page_about_the_code_exist(page: str):
    texts = re.findall(r"`([^`\n]+)`", _CODE.sub("", (ROOT / page).read_text()))
    names = [text for text in dict.fromkeys(texts) if _NAME.fullmatch(text)]
    assert len(names) > 20
    assert [name for name in names if not exists(name)] == []


def _is_there(page: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists() or not heading:
        return target.exists()
    headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w -]", "", text).strip().lower() for text in headings)
    return heading in [text.replace(" ", "-") for text in plain]


def test_every_config_of_a_page_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Options that a block leaves out have their defaults, and a task gets a data set."""
    assert len(of("toml")) > 10
    for number, block in enumerate(of("toml")):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(files_of(block.page, folder))
        raw = tomllib.loads(block.text)
        Path("block.toml").write_text(block.text)
        if "axes" in raw:
            Path(raw["base"]).touch()
            load_study(Path("block.toml"))
        elif "title" in raw:
            load_suites("block.toml")
        elif "parts" in raw:
            read_settings(Path("block.toml"))
        else:
            if raw.get("task", {}).get("name", "dataset") == "dataset" and "task" in raw:
                raw["task"] = {"name": "dataset", "data": "problems.jsonl", **raw["task"]}
            build_config(raw, str(block))


def test_every_command_of_a_page_is_understood(tmp_path, capsys, monkeypatch):
    """Options are resolved too, with the config if the page or the project has it."""
    monkeypatch.chdir(ROOT)
    parse, seen = parser(), 0
    for block in of("shell"):
        for words in commands(block.text):
            if "mugrpo" not in words or "..." in words:
                continue
            seen += 1
            try:
                options, overrides = parse.parse_known_args(words[words.index("mugrpo") + 1 :])
            except SystemExit as end:  # --help and --version print and end
                if end.code:
                    raise AssertionError(f"{block}: {words}") from end
                continue
            assert options.takes_overrides or not overrides, (str(block), words)
            if options.command in ("train", "generate", "demo") and overrides:
                target = getattr(options, "target", None)
                load_config(target if target and Path(target).is_file() else None, overrides)
    assert seen > 30


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, marks=[] if page == "src/mugrpo/extensions/turns/README.md" else pytest.mark.long
        )
        for page in dict.fromkeys(block.page for block in of("python"))
    ],
)
def test_the_python_of_a_page_runs_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(files_of(page, tmp_path))
    names: dict[str, Any] = {}
    for block in of("python"):
        if block.page == page:
            exec(compile(block.text, str(block), "exec"), names)
    assert len(names) > 1


@pytest.mark.long
@pytest.mark.parametrize("page", ["docs/start.md"])
def test_a_page_does_what_it_says_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(files_of(page, tmp_path))
    for block in (block for block in BLOCKS if block.page == page):
        if block.kind == "python" and not block.file.startswith("rewards"):
            exec(compile(block.text, str(block), "exec"), {})
        if block.kind == "shell":
            for program, *words in commands(block.text):
                assert program != "mugrpo" or main(words) == 0, words
    said = "".join(capsys.readouterr())
    gains = re.findall(r"^accuracy +(\S+) .* before, (\S+) ", said, re.MULTILINE)
    assert gains and all(float(after) > float(before) + 0.05 for before, after in gains)


# The embedded model reads sums only: "What is 3+9? Answer with ..." becomes "3+9=".
SUM = "{{ messages[0]['content'].split('?')[0].removeprefix('What is ') }}="
EMBEDDED = "--model.path chain --prompt.chat_template sum.jinja --optimizer.lr 1e-3"
EMBEDDED += " --prompt.allow_missing true"  # the template writes the numbers alone


@pytest.mark.long
def test_the_example_of_own_problems_trains_an_embedded_model(tmp_path, monkeypatch):
    for file in ("mine.toml", "rewards.py", "problems.jsonl"):
        (tmp_path / file).write_text((OWN_PROBLEMS / file).read_text())
    (tmp_path / "sum.jinja").write_text(SUM)
    monkeypatch.chdir(tmp_path)
    words = ["--run-dir", "run", *EMBEDDED.split(), "--workers.count", "1"]
    assert main(["train", "mine.toml", *words]) == 0
    lines = read_metrics(Path("run"))
    first, second = (line for line in lines if line["kind"] == "refresh")
    before, *_, after = (line for line in lines if line["kind"] == "evaluation")
    # most responses of the untrained model do not end within 16 tokens, and get 0
    assert second["behavior_reward"] > first["behavior_reward"] + 0.1
    assert after["reward"] > before["reward"] + 0.05
    for line in (first, second, before, after):
        assert 0 < line["rewards/numeric/mean"] < 1 and 0 < line["rewards/short/mean"] <= 0.2


@pytest.mark.long
@pytest.mark.parametrize("name", ["first_run", "own_reward", "two_methods"])
def test_a_notebook_runs_with_its_assertions(name: str, tmp_path: Path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4)
    place = {"metadata": {"path": str(tmp_path)}}
    with mock.patch.dict(os.environ, ENVIRONMENT):
        nbclient.NotebookClient(book, timeout=1800, resources=place).execute()


@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path: Path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
