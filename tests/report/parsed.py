"""A strict parser of reports: every element is closed, and nothing unexpected occurs."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from mugrpo.report import write_report

VOID = {"meta", "br"}
ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "section"),
    *("h1", "h2", "h3", "p", "b", "i", "s", "small", "strong", "span", "div", "ul", "li"),
    *("table", "thead", "tbody", "tr", "th", "td", "details", "summary", "pre", "article", "bdi"),
    *("figure", "figcaption", "script", "svg", "g", "path", "rect", "line", "text"),
}
ATTRIBUTES = {
    *("class", "lang", "charset", "name", "content", "http-equiv", "scope", "open", "title"),
    *("viewbox", "role", "aria-label", "width", "height", "type", "transform", "d", "x2", "y2"),
    *("fill", "opacity", "fill-opacity", "display", "text-anchor"),
    *("stroke", "stroke-width", "stroke-dasharray", "stroke-miterlimit", "stroke-linecap"),
    *("stroke-linejoin", "stroke-opacity", "font-family", "font-size", "font-weight"),
}


class Parsed(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.source = path.read_bytes().decode("utf-8", errors="strict")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # (enclosing element, text)
        self.style = ""
        self.script = ""  # the one that runs
        self.data: list[str] = []
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
        elif inside == "script" and self.elements[-1][1].get("type") == "application/json":
            self.data.append(data)
        elif inside == "script":
            self.script += data
        elif data.strip():
            self.texts.append((inside, data))

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"a declaration: {data}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data}")

    def count(self, tag: str, css: str) -> int:
        """Count the elements `tag` that have the class `css`."""
        return sum(
            name == tag and css in (attributes.get("class") or "").split()
            for name, attributes in self.elements
        )

    def charts(self) -> dict[str, dict[str, Any]]:
        """Return the charts' specs by their aria-label; if several share one, the last."""
        names = [a["aria-label"] for _, a in self.elements if a.get("class") == "static"]
        return dict(zip(map(str, names), map(json.loads, self.data), strict=True))

    def of(self, tag: str) -> list[str]:
        return [text for inside, text in self.texts if inside == tag]

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.texts)

    def rows(self) -> dict[str, list[str]]:
        """Return the cells of each table row by its heading."""
        rows: dict[str, list[str]] = {}
        heading = ""
        for inside, text in self.texts:
            if inside == "th":
                heading = text
                rows[heading] = []
            elif inside == "td":
                rows[heading].append(text)
        return rows


def layer(spec: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the data rows of the layer `name` of a chart."""
    (found,) = [one for one in spec["layer"] if one.get("name") == name]
    data = found.get("data") or spec["data"]  # data that all layers share are above them
    rows: list[dict[str, Any]] = spec["datasets"][data["name"]]
    return rows


def check_safe(page: Parsed) -> None:
    """Check that only its own script runs in `page`, that it loads nothing, and hides nothing."""
    for tag, attributes in page.elements:
        assert tag in ELEMENTS, tag
        assert set(attributes) <= ATTRIBUTES, (tag, attributes)
    types = [attributes.get("type") for tag, attributes in page.elements if tag == "script"]
    assert types == ["application/json"] * len(page.data) + [None]
    assert all(not set("<>&") & set(data) and data.isascii() for data in page.data)
    rest = page.source.replace(page.script, "")
    assert len(rest) == len(page.source) - len(page.script)
    unseen = {c for c in rest if not c.isprintable() and c not in "\n\t"}
    assert unseen == set()
    for word in ("://", "url(", "@import", "expression("):
        assert word not in rest


def report(*roots: Path) -> Parsed:
    """Return the report of the runs at `roots`, after checking that it is safe."""
    page = Parsed(write_report(roots, roots[0].parent / "out.html"))
    check_safe(page)
    return page
