"""The pages that the code writes: `python scripts/reference_page.py` makes docs/reference.md."""

import inspect
import re
import textwrap
import tomllib
from collections.abc import Iterable
from pathlib import Path

import mugrpo
from mugrpo.disk import errors, run_dir, shards
from mugrpo.disk.records import Rollout
from mugrpo.rewards.math.notation import RULES, SAME

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"
METRICS = ROOT / "src" / "mugrpo" / "disk" / "metrics.toml"
VERDICTS = ROOT / "tests" / "rewards" / "verification.toml"


def page() -> str:
    """Return the page."""
    parts = [
        "# Reference",
        "Written by `python scripts/reference_page.py`. `mugrpo train --help all` lists the "
        "options, `mugrpo objectives` the methods,\n`mugrpo COMMAND --help` the commands; `make "
        "site` shows all of them as pages.",
        "## Exit statuses",
        table(("status", "meaning"), ((str(n), text) for n, text in errors.EXIT_STATUSES.items())),
        "## The run folder",
        _run_folder(),
        "## Metrics",
        "Lines of `metrics.jsonl`, one flat JSON object per event. `*` stands for a name.",
        *_metrics(),
        "## Shards",
        *_shards(),
        "## Python names",
        "`import mugrpo` has these names; `help(mugrpo.open_run)` shows arguments, shapes and "
        "errors. [The API](api.md) has\nexamples.",
        table(("name", "what it is"), ((f"`{n}`", _first(n)) for n in mugrpo.__all__)),
    ]
    return "\n\n".join(parts) + "\n"


def _run_folder() -> str:
    _, tree, rule = (inspect.getdoc(run_dir) or "").split("\n\n")
    rule = " ".join(rule.replace(" (see `publishing`)", "").split())
    return f"<!-- not run: a folder's tree -->\n\n{tree}\n\n{rule}"


def _metrics() -> Iterable[str]:
    for kind, keys in tomllib.loads(METRICS.read_text()).items():
        rows = ((", ".join(f"`{k}`" for k in key.split(", ")), text) for key, text in keys.items())
        yield table((kind, "meaning"), rows)


def _shards() -> Iterable[str]:
    fields = re.findall(r"^    (\w+): [^#\n]+?(?:  # (.+))?$", inspect.getsource(Rollout), re.M)
    notes = dict(fields)
    columns = [*shards.ROLLOUT_SCHEMA, *shards.TURN_SCHEMA]
    yield (
        "A folder of shards holds parquet files, and an entry of each with its checksum in a file "
        "`.json` of the same name; a shard without\nan entry does not exist. Columns of rollouts "
        "(those from `loss_mask` on only with turns), one row per response:"
    )
    rows = ((f"`{c.name}`", _type(c.type), notes.get(c.name, "").strip()) for c in columns)
    yield table(("column", "type", ""), rows)
    about = (inspect.getdoc(Rollout) or "").partition("\n\n")[2]
    yield textwrap.fill(" ".join(about.split("\n\n")[0].split()), 118)
    scores = ", ".join(f"`{column.name}`" for column in shards.SCORE_SCHEMA)
    others = [("`scores`", scores), ("logprobs of other policies", "`logprobs`")]
    yield table(("other shards", "columns"), others)


def _type(kind: object) -> str:
    return re.sub(r"list<\w+: (\w+)>", r"list of \1", str(kind))


def _first(name: str) -> str:
    """Return the first sentence of a name's docstring."""
    thing = getattr(mugrpo, name)
    if not callable(thing):
        return "columns of a shard of rollouts, as a pyarrow schema"
    text = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    return text.rstrip(".:").replace("|", "\\|").replace("<", "\\<")


def verdicts() -> str:
    """Return the page that shows what the reward "math" takes for equal."""
    same = ((_code([latex]), _code(ways.split())) for latex, ways in SAME.items())
    rules = ((_code([rule.written]), _code([rule.becomes])) for rule in RULES)
    parts = [
        "# What counts as equal",
        "## One notation",
        "These signs have one name:",
        table(("read as", "written"), same),
        "Then come all rules, in their order:",
        table(("written", "read as"), rules),
    ]
    for section in tomllib.loads(VERDICTS.read_text())["section"]:
        sides = ("reference", "right", "wrong")
        rows = ([_code(_all(row.get(side, []))) for side in sides] for row in section["rows"])
        parts += [f"## {section['title']}", section["text"], table(sides, map(tuple, rows))]
    return "\n\n".join(parts)


def _all(answers: str | list[str]) -> list[str]:
    return [answers] if isinstance(answers, str) else answers


def _code(answers: list[str]) -> str:
    plain = (a.strip().replace("|", "\\|").replace("`", "'").replace("\n", " ") for a in answers)
    return ", ".join(f"`{answer}`" for answer in plain)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
