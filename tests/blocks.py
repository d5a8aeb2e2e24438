"""The code blocks of the pages, fenced and indented: what each is, and why some are not run."""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt

from tests.runs import ROOT

# CONTRIBUTING.md changes the source; tests/test_api.py runs the blocks of the other.
ELSEWHERE = ("CONTRIBUTING.md", "docs/api.md")
AT_THE_ROOT = ("README.md", "AGENTS.md", "SECURITY.md", "benchmarks/README.md", *ELSEWHERE)
_GLOBS = ("docs/*.md", "src/mugrpo/extensions/**/*.md")  # an extension's page stands with it
_FOUND = (str(page.relative_to(ROOT)) for glob in _GLOBS for page in ROOT.glob(glob))
PAGES = sorted({*AT_THE_ROOT, *_FOUND})
PROGRAMS = "mugrpo cd python pip make pytest ruff mypy eval torchrun ."

_REASON = re.compile(r"<!-- not run: (.+) -->")
_FILE = re.compile(r"^`([\w./-]+\.(?:py|toml|jsonl))`|^# ([\w-]+\.py)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    page: str
    line: int
    text: str
    kind: str  # "python", "toml", "data", "shell" or "text"
    file: str  # the file that it is, if the text before it or its first line names one, or ""
    reason: str  # why it is not run, or ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    github = MarkdownIt("commonmark", {"html": True}).enable("table")
    above = reason = ""
    for token in github.parse((ROOT / page).read_text()):
        if token.type == "html_block":
            reason = "".join(_REASON.findall(token.content))
        elif token.type == "inline":
            above, reason = token.content, ""
        elif token.type in ("fence", "code_block"):
            kind = token.info or kind_of(token.content)
            named = _FILE.search(above) or _FILE.match(token.content)
            file = next(filter(None, named.groups())) if named else ""
            assert token.map is not None
            yield Block(page, token.map[0] + 1, token.content, kind, file, reason)
            above = reason = ""


def kind_of(text: str) -> str:
    """Return what an indented block is, by its text."""
    lines = text.strip().splitlines()
    if all(words and words[0] in PROGRAMS.split() for words in commands(text)):
        return "shell"
    if lines[0].startswith("{"):
        [json.loads(line) for line in lines if line != "..."]
        return "data"
    for kind, parse in (("toml", tomllib.loads), ("python", ast.parse)):
        try:
            parse(text)
        except (ValueError, SyntaxError):
            continue
        return kind
    return "text"


def commands(text: str) -> list[list[str]]:
    """Return the words of each command of a block, without comments, variables and redirection."""
    parted: list[list[str]] = []
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            return [[]]
        for part in " ".join(map(shlex.quote, words)).split(" '&&' "):
            plain = shlex.split(part.partition(" '>' ")[0])
            while plain and re.match(r"[A-Z_]+=", plain[0]):
                plain = plain[1:]
            parted += [plain] if plain else []
    return parted
