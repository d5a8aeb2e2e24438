"""README, docs and the other pages: the trees match the floors, and what is named exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import mugrpo
from tests.test_layers import FLOORS, HOUSE

ROOT = Path(__file__).parents[1]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "AGENTS.md", "llms.txt")
    ),
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "log.md"),
]
OF_OTHERS = "## Side by side"  # after it, architecture.md names what other projects have
EXAMPLE = "sapo"  # what CONTRIBUTING.md adds
_DOTTED = re.compile(r"`(mugrpo(?:\.\w+)+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*\.(?:py|toml|md|sh|json))`")


def text_of(page: Path) -> str:
    return page.read_text().partition(OF_OTHERS)[0]


def rooms_in_tree(page: Path) -> list[str]:
    """Return the names at the outermost indent of the page's tree of src/mugrpo."""
    block = max(re.findall(r"(?:^(?: {4}.*)?\n)+", page.read_text(), re.MULTILINE), key=_rooms)
    lines = [line for line in block.splitlines() if re.match(r" +[\w/.]+", line)]
    if "src/mugrpo/" in block:
        below = block[block.index("src/mugrpo/") :].splitlines()[1:]
        lines = [line[2:] for line in below if line.startswith(" " * 6)]
    named = [re.match(r" {4}((?:\w+(?:\.py|/) ?)+)", line) for line in lines]
    return [word for match in named if match for word in match[1].split()]


def _rooms(block: str) -> int:
    return sum(f" {room}" in block for floor in FLOORS for room in floor.split())


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_the_tree_has_the_rooms_floor_by_floor_from_the_top(page: str):
    rooms = [word.removesuffix("/").removesuffix(".py") for word in rooms_in_tree(ROOT / page)]
    floors = [floor.split() for floor in reversed(FLOORS)]
    assert sorted(rooms) == sorted(room for floor in floors for room in floor)
    floor_of = {room: number for number, floor in enumerate(floors) for room in floor}
    assert [floor_of[room] for room in rooms] == sorted(floor_of[room] for room in rooms)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_dotted_name_is_a_module_or_in_one(page: Path):
    assert [name for name in _DOTTED.findall(text_of(page)) if not _is_there(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_exists(page: Path):
    """Paths are relative to the root or to src/mugrpo. Those of a run or a reader are left out."""
    paths = [path for path in _PATH.findall(text_of(page)) if not _of_a_reader(path)]
    missing = [path for path in paths if not ((ROOT / path).exists() or (HOUSE / path).exists())]
    assert missing == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs" / "log.md"], ids=lambda page: page.name)
def test_every_link_within_the_project_leads_somewhere(page: Path):
    links = [link for link in _LINK.findall(page.read_text()) if "://" not in link]
    broken = []
    for link in links:
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (heading and heading not in _anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_line_has_at_most_120_characters_outside_tables_and_blocks(page: Path):
    lines = [line for line in page.read_text().splitlines() if not line.startswith(("|", "    "))]
    assert [line for line in lines if len(line) > 120] == []


def test_no_blank_line_splits_a_list_of_changes():
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    items = [n for n, line in enumerate(lines) if line.startswith("- ") and not lines[n - 1]]
    assert [lines[n] for n in items if not lines[n - 2].startswith("#")] == []


def test_llms_txt_has_the_form_of_llmstxt_org_and_names_every_document():
    """A title, a summary, then sections that hold nothing but links with a line on each."""
    page = (ROOT / "llms.txt").read_text()
    head, *sections = page.split("\n## ")
    assert re.match(r"# mugrpo\n\n(> .+\n)+\n", head) and len(sections) >= 3
    for section in sections:
        listed = section.partition("\n\n")[2].strip().splitlines()
        assert listed and all(re.fullmatch(r"- \[[^]]+\]\(\S+\): .+", line) for line in listed)
    documents = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert documents <= set(_LINK.findall(page))


def test_missing_names_are_noticed():
    assert _is_there("mugrpo.disk.shards.ROLLOUT_SCHEMA") and _is_there("mugrpo.rollouts.score")
    assert _is_there("mugrpo.Rollout") and not _is_there("mugrpo.Rollouts")
    assert not _is_there("mugrpo.shards.ROLLOUT_SCHEMA") and not _is_there("mugrpo.disk.shards.No")
    assert _PATH.findall("see `disk/shards.py` and `a.py`") == ["disk/shards.py"]


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def _of_a_reader(path: str) -> bool:
    return path.startswith(("runs/", "RUN/", "stages/0", ".venv")) or any(
        word in path for word in ("NAME", EXAMPLE)
    )


def _is_there(name: str) -> bool:
    parts = name.split(".")[1:]
    if len(parts) == 1 and parts[0] in mugrpo.__all__:
        return True
    for length in range(len(parts), 0, -1):
        place = HOUSE.joinpath(*parts[:length])
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if file.exists():
            return length == len(parts) or parts[length] in _defined(file)
    return False


@cache
def _defined(file: Path) -> frozenset[str]:
    """Return the names that a module binds at its top level."""
    bound = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            bound.add(node.name)
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Name):
                bound.add(target.id)
    return frozenset(bound)
