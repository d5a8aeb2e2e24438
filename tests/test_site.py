"""The site: built without a warning, whole, the same in both dialects of Markdown, and offline."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt

from mugrpo.arguments import commands, parser
from mugrpo.config.describe import describe
from mugrpo.config.preset import PRESETS
from tests.runs import ROOT

DOCS = sorted((ROOT / "docs").glob("*.md"))
STUDIES = sorted((ROOT / "studies" / "results").glob("*/README.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS, *STUDIES]
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
SHAPE = ("h1", "h2", "h3", "li", "tr", "td", "th", "pre", "code", "img", "strong", "em")


@dataclass
class Seen(HTMLParser):
    """What a page has: links, anchors, what it loads, its script texts, the tags of its article."""

    links: list[str] = field(default_factory=list)
    anchors: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    tags: Counter[str] = field(default_factory=Counter)
    inside: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.inside |= tag == "article"
        self.tags[tag] += self.inside
        self.anchors += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if tag == "a" and "href" in values else []
        self.loaded += [values[LOADED[tag]]] if LOADED.get(tag) in values else []

    def handle_endtag(self, tag: str) -> None:
        self.inside &= tag != "article"


def seen(html: str) -> Seen:
    page = Seen()
    page.feed(html)
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make site` builds it."""
    folder = tmp_path_factory.mktemp("site") / "built"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stderr
    return folder


@cache
def page_of(file: Path) -> Seen:
    return seen(file.read_text())


def built(site: Path, page: Path) -> Seen:
    """Return the site's page made from a file of the repository."""
    name = page.relative_to(ROOT)
    made = name.with_name("index") if name.stem == "README" else name
    return page_of(site / made.with_suffix(".html"))


def addresses(page: Seen) -> Iterator[str]:
    """Yield what a page links to or loads on the site itself."""
    for address in [*page.links, *page.loaded]:
        if not re.match(r"[a-z]+:|//", address):
            yield unquote(address)


def test_every_link_of_the_site_leads_to_a_file_and_an_anchor_of_it(site: Path):
    broken = []
    for file in site.rglob("*.html"):
        for address in addresses(page_of(file)):
            path, _, anchor = address.partition("#")
            target = (file.parent / path).resolve() if path else file
            exists = target.is_file() and target.is_relative_to(site.resolve())
            if not exists or (anchor and anchor not in page_of(target).anchors):
                broken.append((file.relative_to(site), address))
    assert [link for link in broken if link[0].name != "404.html"] == []


def test_nothing_is_loaded_from_the_network(site: Path):
    for file in site.rglob("*.html"):
        assert [address for address in page_of(file).loaded if "//" in address] == []
    for file in site.rglob("*.css"):
        assert (
            re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']*", file.read_text()) == []
        )
    assert any(page_of(site / "index.html").loaded)


def test_the_pages_and_the_references_can_be_searched(site: Path):
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"]: entry["text"] for entry in index["docs"]}
    assert "Weight of the divergence" in found["reference/options.html#reference.coefficient"]
    assert {f"docs/{page.stem}.html" for page in DOCS} <= found.keys()
    assert {f"studies/results/{page.parent.name}/index.html" for page in STUDIES} <= found.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_the_same_parts_as_on_github(site: Path, page: Path):
    """GitHub renders CommonMark, the site another dialect, which needs more blank lines."""
    renderer = MarkdownIt("commonmark", {"html": True}).enable("table")
    github = seen(f"<article>{renderer.render(page.read_text())}</article>").tags
    assert {tag: built(site, page).tags[tag] for tag in SHAPE} == {
        tag: github[tag] for tag in SHAPE
    }


def test_every_document_is_in_the_navigation(site: Path):
    reached = {
        (site / unquote(address.partition("#")[0])).resolve()
        for address in addresses(page_of(site / "index.html"))
    }
    assert {(site / "docs" / f"{page.stem}.html").resolve() for page in DOCS} <= reached
    names = ("options", "objectives", "commands")
    assert {(site / "reference" / f"{name}.html").resolve() for name in names} <= reached


def test_every_study_is_listed_with_its_question(site: Path):
    page = (site / "studies" / "results" / "index.html").read_text()
    assert len(STUDIES) > 30
    for study in STUDIES:
        assert f'href="{study.parent.name}/index.html"' in page
    assert "Figure 2 of the Mu-GRPO paper" in page


def test_the_reference_has_every_option_once_for_each_of_its_meanings(site: Path):
    anchors = Counter(page_of(site / "reference" / "options.html").anchors)
    options = describe()
    assert {option.name for option in options} <= anchors.keys()
    assert [name for name, count in anchors.items() if count > 1] == []
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "options.html").read_text())
    assert text.count("A resumed run") == len(options)
    assert "int &gt;= 2, &lt;= 100000000, default 8. A resumed run cannot change it." in text


def test_the_references_have_every_command_and_preset(site: Path):
    headings = page_of(site / "reference" / "commands.html").anchors
    assert {f"mugrpo-{name}" for name in commands(parser())} <= set(headings)
    presets = page_of(site / "reference" / "objectives.html").anchors
    assert PRESETS.keys() <= set(presets)
