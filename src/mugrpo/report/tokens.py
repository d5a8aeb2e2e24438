"""Sampled rollouts as text, with each token highlighted by its importance ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mugrpo.report.groups import reference_line, whole_group
from mugrpo.report.markup import Content, Markup, cut, join, tag, text
from mugrpo.report.readable import MISSING, plain
from mugrpo.report.samples import Sample, SampleFile, Token

# Ratios at which the color changes; below 1 the same steps downward.
STEPS = (1.05, 1.25, 1.6, 2.5, 5.0, 20.0)
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
    blocks = []
    for file in filled:
        where = [f"stage {file.stage}"] if file.stage is not None else []
        where += [f"staleness {file.staleness}"] if file.staleness is not None else []
        heading = join(
            [
                tag("b", f"Update {file.update:,}"),
                tag("span", ", ".join([*where, f"{len(file.samples)} rollouts"]), class_="muted"),
            ],
            " ",
        )
        rollouts = [_rollout(sample, limit) for sample in file.samples]
        last = "open" if file is filled[-1] else None
        blocks.append(tag("details", tag("summary", heading), *rollouts, open=last))
    return tag("div", ratio_legend(filled), *blocks, class_="samples")


def step_css(ratio: float | None) -> str:
    """Return the class of a ratio's color: b6 (far below 1) to b1, a1 to a6 (far above 1).

    It is "" near 1, and "unknown" if the ratio is None.
    """
    if ratio is None:
        return "unknown"
    away = math.exp(abs(math.log(ratio))) if ratio > 0 else math.inf
    step = sum(away >= bound for bound in STEPS)
    return "" if step == 0 else f"{'a' if ratio > 1 else 'b'}{step}"


def ratio_legend(files: Sequence[SampleFile]) -> Markup:
    """Return the ramp of colors with its bounds, and the marks that occur."""
    below = [f"b{step}" for step in range(len(STEPS), 0, -1)]
    above = [f"a{step}" for step in range(1, len(STEPS) + 1)]
    bounds = [plain(1 / bound, 2) for bound in reversed(STEPS)]
    bounds += [plain(bound) for bound in STEPS]
    cells = [tag("i", class_=css or None) for css in [*below, "", *above]]
    labels = [tag("small", bound) for bound in bounds]
    ramp = tag(
        "div",
        tag("span", "policy less likely than β", class_="muted"),
        tag("div", tag("div", *cells, class_="cells"), tag("div", *labels, class_="bounds")),
        tag("span", "more likely", class_="muted"),
        class_="ramp",
    )
    present = {mark for file in files for s in file.samples for t in s.tokens for mark in t.marks}
    names = [mark for mark in MARKS if mark in present] + sorted(present - set(MARKS))
    marks = [tag("span", tag("s", name, class_=f"t {mark_css(name)}"), " ") for name in names]
    return join([ramp, tag("p", "Marked tokens: ", *marks, class_="marks") if marks else None])


def mark_css(mark: str) -> str:
    """Return the class of a mark."""
    return f"mark-{mark}" if mark in MARKS else "mark-other"


def _rollout(sample: Sample, limit: int) -> Markup:
    sign = "" if not sample.advantage else "positive" if sample.advantage > 0 else "negative"
    facts = [
        tag("span", f"advantage {_signed(sample.advantage)}", class_=f"chip {sign}".strip()),
        tag("span", (sample.status or "not scored").replace("_", " "), class_="chip"),
        tag("span", f"reward {plain(sample.reward)}", class_="chip"),
        tag("span", f"finished by {sample.finish_reason}", class_="chip"),
        tag("span", _ratio_words(sample.tokens), class_="muted"),
    ]
    identity = f"{sample.problem_id} · occurrence {sample.occurrence} · sample {sample.sample}"
    prompt, prompt_note = cut(sample.prompt, _LONGEST_PROMPT)
    tokens = sample.tokens[:limit]
    notes = [prompt_note and f"prompt {prompt_note}"]
    if len(tokens) < len(sample.tokens):
        notes.append(f"response cut: {len(tokens):,} of {len(sample.tokens):,} tokens shown")
    return tag(
        "article",
        tag("div", *facts, class_="facts"),
        tag("div", cut(identity, 200)[0], class_="identity"),
        tag("div", tag("bdi", prompt), class_="prompt"),
        reference_line(sample.reference),
        tag("div", *map(_token, tokens), class_="response"),
        *(tag("p", note, class_="muted") for note in notes if note),
        whole_group(sample.group),
    )


def _token(token: Token) -> Markup:
    marks = [mark_css(mark) for mark in token.marks]
    css = " ".join(part for part in ("t", step_css(token.ratio), *marks) if part)
    label, note = cut(token.text, _LONGEST_TOKEN)
    words = f"ratio {plain(token.ratio)}"
    if token.ratio is not None and token.behavior is not None:
        words += f", β {plain(token.behavior)} to π {plain(token.behavior * token.ratio)}"
    words += "".join(f", {cut(mark, 60)[0]}" for mark in token.marks) + (
        f", {note}" if note else ""
    )
    lines: list[Content] = [text(label.replace("\n", "↵\n")), "…" if note else None]
    return tag("bdi", *lines, class_=css, title=words)


def _ratio_words(tokens: Sequence[Token]) -> str:
    ratios = [token.ratio for token in tokens if token.ratio is not None]
    if not ratios:
        return "no ratios"
    return f"ratios {plain(min(ratios))} to {plain(max(ratios))}"


def _signed(value: float | None) -> str:
    return MISSING if value is None else ("+" if value > 0 else "") + plain(value)
