"""A report taken apart again, strictly: every element closed, nothing that is not expected."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from mugrpo.report import write_report

VOID = {"meta", "br"}
ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "section", "footer"),
    *("h1", "h2", "h3", "h4", "p", "b", "i", "s", "small", "strong", "span", "div", "ul", "li"),
    *("table", "thead", "tbody", "tr", "th", "td", "details", "summary", "pre", "article", "bdi"),
    *("figure", "figcaption", "svg", "path", "rect", "circle", "text"),
}
ATTRIBUTES = {
    *("class", "lang", "charset", "name", "content", "http-equiv", "scope", "open", "title"),
    *("viewbox", "role", "aria-label", "aria-hidden", "width", "height"),
    *("d", "x", "y", "cx", "cy", "r"),
}


class Parsed(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.source = path.read_bytes().decode("utf-8", errors="strict")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # (element it is in, text)
        self.style = ""
        self._open: list[str] = []
        self.feed(self.source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside == "style":
            self.style += data
        elif data.strip():
            self.texts.append((inside, data))

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"a declaration: {data}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data}")

    def count(self, tag: str, css: str) -> int:
        """Elements `tag` that have the class `css`."""
        return sum(
            name == tag and css in (attributes.get("class") or "").split()
            for name, attributes in self.elements
        )

    def of(self, tag: str) -> list[str]:
        return [text for inside, text in self.texts if inside == tag]

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.texts)

    def rows(self) -> dict[str, list[str]]:
        """Table rows: the heading, and its cells."""
        rows: dict[str, list[str]] = {}
        heading = ""
        for inside, text in self.texts:
            if inside == "th":
                heading = text
                rows[heading] = []
            elif inside == "td":
                rows[heading].append(text)
        return rows


def check_safe(page: Parsed) -> None:
    """Nothing in `page` can run, load or lead anywhere, and nothing in it is unseen."""
    for tag, attributes in page.elements:
        assert tag in ELEMENTS, tag
        assert set(attributes) <= ATTRIBUTES, (tag, attributes)
    unseen = {c for c in page.source if not c.isprintable() and c not in "\n\t"}
    assert unseen == set()
    for word in ("://", "url(", "@import", "expression("):
        assert word not in page.source


def report(*roots: Path) -> Parsed:
    """The report of the runs at `roots`, found safe."""
    page = Parsed(write_report(roots, roots[0].parent / "out.html"))
    check_safe(page)
    return page
