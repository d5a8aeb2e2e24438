"""mkdocs' hook: the site's files in the repository's layout, and its references from the code."""

import argparse
import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from mugrpo.arguments import parser, parsers_of
from mugrpo.config.describe import Option, Table, tables
from mugrpo.config.run import PRESETS, RunConfig, preset_summary
from mugrpo.tools.catalog import catalog

ROOT = Path(__file__).parents[1]
PRESET_FOLDER = ROOT / "src" / "mugrpo" / "config" / "presets"
AT_THE_ROOT = ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY", "AGENTS")
_SHIM = "https://unpkg.com/iframe-worker/shim"  # of Material's plugin "offline"
LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)")


def pages() -> list[Path]:
    """Return the Markdown files that are pages of the site."""
    studies = sorted((ROOT / "studies" / "results").glob("*/README.md"))
    return [
        *(ROOT / f"{name}.md" for name in AT_THE_ROOT),
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "src" / "mugrpo" / "extensions").rglob("*.md")),
        *(ROOT / name for name in ("benchmarks/README.md", "findings/README.md", "studies/log.md")),
        *studies,
    ]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the theme's files, the pages with what they link to, and the references."""
    made = {
        "iframe-worker.js": (ROOT / "scripts" / "iframe-worker.js").read_text(),
        "site.css": ".md-grid { max-width: 80rem }\n",  # code has lines of 98 columns
        "reference/options.md": options_page(),
        "reference/objectives.md": objectives_page(),
        "reference/commands.md": commands_page(),
        "reference/verdicts.md": runpy.run_path(f"{ROOT}/scripts/reference_page.py")["verdicts"](),
    }
    paths = set()
    for page in pages():
        paths.add(page)
        for target in targets(page):
            if target.is_dir():
                made[f"{target.relative_to(ROOT)}/README.md"] = folder_page(target)
                paths.update(path for path in target.iterdir() if path.is_file())
            else:
                paths.add(target)
    copied = {path.relative_to(ROOT).as_posix(): path for path in sorted(paths)}
    return Files(
        [
            *(file for file in files if file.src_dir != config.docs_dir),  # the theme's
            *(File.generated(config, to, abs_src_path=str(path)) for to, path in copied.items()),
            *(File.generated(config, to, content=text) for to, text in made.items()),
        ]
    )


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return a page whose links to folders lead to the lists of their files."""

    def whole(link: re.Match[str]) -> str:
        folder = (ROOT / page.file.src_uri).parent / link[1]
        return f"]({link[1]}/README.md)" if folder.is_dir() else link[0]

    return LINK.sub(whole, markdown)


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Return the page with the script of the search from the site itself, not from the network."""
    return output.replace(_SHIM, get_relative_url("iframe-worker.js", page.url))


def targets(page: Path) -> Iterator[Path]:
    """Yield the files and folders of the repository that a page links to."""
    for link in LINK.findall(page.read_text()):
        target = (page.parent / link).resolve()
        if "://" not in link and target.exists():
            yield target


def folder_page(folder: Path) -> str:
    """Return a list of a folder's files."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    return "\n".join([f"# {folder.relative_to(ROOT)}", "", *(f"- [{n}]({n})" for n in names)])


def options_page() -> str:
    """Return every option with type, bounds, default and meaning, table by table."""
    lines = [
        "# Options",
        "",
        "Every option of a run, in a config file or as `--group.option VALUE`. The defaults are "
        "those of a config without `preset`. `mugrpo train --help all` prints the same.",
    ]
    for table in tables({"": RunConfig}, values=RunConfig()):
        lines += ["", f"## {_heading(table)}", ""]
        lines += [table.meaning, ""] if table.name else []
        named: set[str] = set()
        for option in table.options:  # choices may have options of one name
            anchor = (
                option.name
                if option.name not in named
                else "-".join([option.name, *option.defaults])
            )
            named.add(anchor)
            lines += _entry(option, table, anchor)
    return "\n".join(lines)


def _heading(table: Table) -> str:
    if table.name.endswith("[]"):
        return f"`[[{table.name[:-2]}]]`"
    return f"`[{table.name}]`" if table.name else "The run"


def _entry(option: Option, table: Table, anchor: str) -> list[str]:
    """Return the lines on one option of `table`."""
    kind = f"`{option.kind}`, " + (
        "required" if option.default == "required" else f"default `{option.default}`"
    )
    lines = [f"#### `{option.name}` {{: #{anchor} }}", "", f"{kind}. {RESUME[option.on_resume]}"]
    if option.name == table.chooser:
        lines += ["", *(f"- `{name}`: {_summary(o)}" for name, o in table.members.items()), ""]
        return lines
    if table.chooser:
        lines += [
            "",
            f"For `{table.chooser}` " + ", ".join(f"`{n}`" for n in option.defaults) + ".",
        ]
    return [*lines, "", _escaped(option.meaning), ""]


RESUME = {
    "harmless": "A resumed run may change it.",
    "forced": "A resumed run may change it with `--force`.",
    "fixed": "A resumed run cannot change it.",
}


def _summary(options: type) -> str:
    return _escaped((inspect.getdoc(options) or "").split("\n\n")[0].replace("\n", " "))


def _escaped(text: str) -> str:
    """Return plain text as Markdown that shows it."""
    return re.sub(r"([\\*_<>\[\]|])", r"\\\1", text)


def objectives_page() -> str:
    """Return the presets' files, and `mugrpo objectives` group by group."""
    lines = ["# Presets and objectives", ""]
    lines += [
        "[What an update maximizes](../docs/objectives.md) explains the parts.",
        "",
        "## Presets",
    ]
    for name in PRESETS:
        text = (PRESET_FOLDER / f"{name}.toml").read_text()
        lines += ["", f"### {name}", "", _escaped(preset_summary(name)), "", "```toml", text, "```"]
    shown = list(catalog())
    starts = [n for n, line in enumerate(shown) if line.startswith("[")]
    for start, end in zip(starts, [*starts[1:], len(shown)], strict=True):
        group = "\n".join(shown[start + 1 : end])
        lines += ["", f"## `{shown[start]}`", "", "```text", group, "```"]
    return "\n".join(lines)


def commands_page() -> str:
    """Return the help of every command."""
    lines = ["# Commands", "", "Commands that take a run's options also take [these](options.md)."]
    for name, command in parsers_of(parser()).items():
        command.formatter_class = lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=98)
        lines += ["", f"## mugrpo {name}", "", "```text", command.format_help(), "```"]
    return "\n".join(lines)
