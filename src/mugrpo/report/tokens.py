"""Sampled rollouts as text: each token colored by ratio, behavior logprob or entropy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mugrpo.report.groups import difference, reference_line, whole_group
from mugrpo.report.markup import Content, Markup, cut, join, line_ends, tag, text
from mugrpo.report.readable import plain
from mugrpo.report.samples import (
    COLORINGS,
    Sample,
    SampleFile,
    Token,
    facts,
    scale,
    shade,
    stored_colorings,
)

Seen = tuple[SampleFile, Sample]

MARKS = ("clipped", "vetoed", "masked")

_LONGEST_RESPONSE = 400  # tokens
_LONGEST_TOKEN = 200  # characters
_LONGEST_PROMPT = 1500


def sampled_rollouts(files: Sequence[SampleFile], budget: int) -> Markup | None:
    """Return the files' rollouts by update, collapsed except for the last update.

    They show about `budget` tokens in all: every response is cut at the same length.
    """
    filled = [file for file in files if file.samples]
    if not filled:
        return None
    count = sum(len(file.samples) for file in filled)
    limit = max(40, min(_LONGEST_RESPONSE, budget // count))
    blocks, stage = [], filled[0].stage
    before, during = dict[str, Seen](), dict[str, Seen]()  # a problem's sample in earlier stages
    for file in filled:
        if file.stage != stage:
            before, during, stage = before | during, {}, file.stage
        where = [f"stage {file.stage}"] if file.stage is not None else []
        where += [f"staleness {file.staleness}"] if file.staleness is not None else []
        heading = join(
            [
                tag("b", f"Update {file.update:,}"),
                tag("span", ", ".join([*where, f"{len(file.samples)} rollouts"]), class_="muted"),
            ],
            " ",
        )
        rollouts = [_rollout(file, s, limit, before.get(s.problem_id)) for s in file.samples]
        during |= {sample.problem_id: (file, sample) for sample in file.samples}
        last = "open" if file is filled[-1] else None
        blocks.append(tag("details", tag("summary", heading), *rollouts, open=last))
    return tag("div", _controls(filled), *blocks, class_="samples")


def _legend(coloring: str) -> Markup:
    """Return a coloring's ramp, which is shown while it is chosen."""
    shades, bounds = scale(coloring)
    cells = [tag("i", class_=css or None) for css in shades]
    labels = [tag("small", plain(bound, 2 if bound < 1 else 3)) for bound in bounds]
    return tag(
        "div",
        tag("div", tag("div", *cells, class_="cells"), tag("div", *labels, class_="bounds")),
        tag("span", COLORINGS[coloring], class_="muted"),
        class_=f"ramp {coloring}",
    )


def _controls(files: Sequence[SampleFile]) -> Markup:
    """Return the choice of what colors the tokens, and filters, which the script unhides."""
    samples = [sample for file in files for sample in file.samples]
    tokens = [token for sample in samples for token in sample.tokens]
    colorings = stored_colorings(tokens)
    choices = [
        tag("label", tag("input", type="radio", name="color", value=name, checked=on), f" {name}")
        for name in colorings
        for on in ["checked" if name == colorings[0] else None]
    ]
    stages = dict.fromkeys(str(file.stage) for file in files if file.stage is not None)
    filters = tag(
        "div",
        _choice("stage", stages),
        tag("label", "problem ", tag("input", type="search", name="problem")),
        _choice("status", dict.fromkeys(_status(sample) for sample in samples)),
        tag("label", "reward from ", tag("input", type="number", name="low", step="any")),
        tag("label", "to ", tag("input", type="number", name="high", step="any")),
        class_="filters",
        hidden="",
    )
    present = {mark for token in tokens for mark in token.marks}
    names = [mark for mark in MARKS if mark in present] + sorted(present - set(MARKS))
    marks = [tag("span", tag("s", name, class_=f"t {mark_css(name)}"), " ") for name in names]
    missing = [name for name in COLORINGS if name not in colorings]
    return tag(
        "form",
        filters,
        tag("div", "color tokens by ", *choices, class_="colorings") if choices else None,
        *map(_legend, colorings),
        tag("p", f"Not stored: {', '.join(missing)}.", class_="marks") if missing else None,
        tag("p", "Marked tokens: ", *marks, class_="marks") if marks else None,
    )


def _choice(name: str, values: Iterable[str]) -> Markup:
    options = [tag("option", value, value=value) for value in values]
    return tag(
        "label", f"{name} ", tag("select", tag("option", "all", value=""), *options, name=name)
    )


def mark_css(mark: str) -> str:
    """Return the class of a mark."""
    return f"mark-{mark}" if mark in MARKS else "mark-other"


def _rollout(file: SampleFile, sample: Sample, limit: int, before: Seen | None) -> Markup:
    sign = "" if not sample.advantage else "positive" if sample.advantage > 0 else "negative"
    advantage, *chips, ratios = facts(sample)
    identity = f"{sample.problem_id} · occurrence {sample.occurrence} · sample {sample.sample}"
    prompt, prompt_note = cut(sample.prompt, _LONGEST_PROMPT)
    tokens = sample.tokens[:limit]
    notes = [prompt_note and f"prompt {prompt_note}"]
    if len(tokens) < len(sample.tokens):
        notes.append(f"response cut: {len(tokens):,} of {len(sample.tokens):,} tokens shown")
    return tag(
        "article",
        tag(
            "div",
            tag("span", advantage, class_=f"chip {sign}".strip()),
            *(tag("span", chip, class_="chip") for chip in chips),
            tag("span", ratios, class_="muted"),
            class_="facts",
        ),
        tag("div", cut(identity, 200)[0], class_="identity"),
        tag(
            "div",
            tag("div", tag("bdi", prompt), reference_line(sample.reference), class_="prompt"),
            tag("div", *map(_token, tokens), class_="response"),
            class_="sides",
        ),
        *(tag("p", note, class_="muted") for note in notes if note),
        before and _compared(*before, tokens),
        whole_group(sample.group),
        data_stage="" if file.stage is None else str(file.stage),
        data_status=_status(sample),
        data_reward="" if sample.reward is None else str(sample.reward),
    )


def _compared(file: SampleFile, sample: Sample, tokens: Sequence[Token]) -> Markup:
    """Return an earlier stage's response beside `tokens`, both cut at the same length."""
    texts = ([one.text for one in part] for part in (sample.tokens[: len(tokens)], tokens))
    return difference(f"stage {file.stage}, update {file.update:,}", *texts)


def _status(sample: Sample) -> str:
    return cut((sample.status or "not scored").replace("_", " "), 60)[0]


def _token(token: Token) -> Markup:
    shades = [shade(token, coloring) for coloring in COLORINGS]
    unknown = "unknown" if token.ratio is None else None
    css = " ".join(filter(None, ("t", unknown, *shades, *map(mark_css, token.marks))))
    label, note = cut(token.text, _LONGEST_TOKEN)
    words = f"ratio {plain(token.ratio)}"
    if token.ratio is not None and token.behavior is not None:
        words += f", β {plain(token.behavior)} to π {plain(token.behavior * token.ratio)}"
    words += f", entropy {plain(token.entropy, 2)}" if token.entropy is not None else ""
    words += "".join(f", {cut(mark, 60)[0]}" for mark in token.marks) + (
        f", {note}" if note else ""
    )
    lines: list[Content] = [text(line_ends(label)), "…" if note else None]
    return tag("bdi", *lines, class_=css, title=words)
