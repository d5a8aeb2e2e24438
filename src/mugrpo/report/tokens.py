"""Sampled rollouts token by token, colored by ratio, behavior logprob or entropy; whole groups."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from mugrpo.report.figures import part
from mugrpo.report.readable import cut, line_ends, plain
from mugrpo.report.samples import (
    COLORINGS,
    EvaluationFile,
    Response,
    Sample,
    SampleFile,
    Token,
    differences,
    facts,
    scale,
    shade,
    stored_colorings,
)

MARKS = ("clipped", "vetoed", "masked")

_TOKENS = 400  # of a response
_TOKEN, _PROMPT, _RESPONSE, _PARTS = 200, 1500, 400, 200  # characters
_WORDS = re.compile(r"\w+|\W")


def sampled_rollouts(files: Sequence[SampleFile], budget: int) -> Markup | None:
    """Return the files' rollouts by update, collapsed except for the last update.

    They show about `budget` tokens in all: every response is cut at the same length.
    """
    filled = [file for file in files if file.samples]
    if not filled:
        return None
    limit = max(40, min(_TOKENS, budget // sum(len(file.samples) for file in filled)))
    shown, stage = [], filled[0].stage
    before, during = dict[str, tuple[SampleFile, Sample]](), dict[str, tuple[SampleFile, Sample]]()
    for file in filled:
        if file.stage != stage:  # a rollout is compared with its problem's in an earlier stage
            before, during, stage = before | during, {}, file.stage
        where = [f"stage {file.stage}"] if file.stage is not None else []
        where += [f"staleness {file.staleness}"] if file.staleness is not None else []
        where.append(f"{len(file.samples)} rollouts")
        rollouts = [_rollout(file, s, limit, before.get(s.problem_id)) for s in file.samples]
        during |= {sample.problem_id: (file, sample) for sample in file.samples}
        update = f"{file.update:,}"
        shown.append({"update": update, "where": ", ".join(where), "rollouts": rollouts})
    return part("sampled", shown, _controls(filled))


def evaluated_groups(files: Sequence[EvaluationFile]) -> Markup | None:
    """Return the responses to a few held-out problems at each evaluation that was read."""
    shown, last = [], dict[str, tuple[int, Response]]()
    for file in [file for file in files if file.groups]:
        groups = [
            {
                "identity": cut(group.problem_id, 200)[0],
                "prompt": cut(group.prompt, _PROMPT)[0],
                "reference": _cut(group.reference),
                "responses": [_response(one) for one in group.responses],
                "since": _since(last.get(group.problem_id), group.responses),
            }
            for group in file.groups
        ]
        last |= {g.problem_id: (file.update, g.responses[0]) for g in file.groups if g.responses}
        shown.append({"update": f"{file.update:,}", "groups": groups})
    return part("evaluated", shown) if shown else None


def mark_css(mark: str) -> str:
    """Return the class of a mark."""
    return f"mark-{mark}" if mark in MARKS else "mark-other"


def _controls(files: Sequence[SampleFile]) -> dict[str, Any]:
    """Return the choice of what colors the tokens, and filters, which the script unhides."""
    samples = [sample for file in files for sample in file.samples]
    tokens = [token for sample in samples for token in sample.tokens]
    stored, colorings = stored_colorings(tokens), []
    for name in stored:
        shades, bounds = scale(name)
        texts = [plain(bound, 2 if bound < 1 else 3) for bound in bounds]
        meaning = COLORINGS[name]
        colorings.append({"name": name, "shades": shades, "bounds": texts, "meaning": meaning})
    present = {mark for token in tokens for mark in token.marks}
    names = [mark for mark in MARKS if mark in present] + sorted(present - set(MARKS))
    return {
        "stages": list(dict.fromkeys(str(f.stage) for f in files if f.stage is not None)),
        "statuses": list(dict.fromkeys(_status(sample) for sample in samples)),
        "colorings": colorings,
        "missing": ", ".join(name for name in COLORINGS if name not in stored),
        "marks": [(cut(name, 60)[0], mark_css(name)) for name in names],
    }


def _rollout(
    file: SampleFile, sample: Sample, limit: int, before: tuple[SampleFile, Sample] | None
) -> dict[str, Any]:
    sign = "" if not sample.advantage else " positive" if sample.advantage > 0 else " negative"
    advantage, *chips, ratios = facts(sample)
    prompt, note = cut(sample.prompt, _PROMPT)
    tokens = sample.tokens[:limit]
    notes = [f"prompt {note}"] if note else []
    if len(tokens) < len(sample.tokens):
        notes.append(f"response cut: {len(tokens):,} of {len(sample.tokens):,} tokens shown")
    since = None
    if before:
        old, new = ([t.text for t in part] for part in (before[1].tokens[: len(tokens)], tokens))
        since = _difference(f"stage {before[0].stage}, update {before[0].update:,}", old, new)
    right = sum(response.status == "right" for response in sample.group)
    identity = f"{sample.problem_id} · occurrence {sample.occurrence} · sample {sample.sample}"
    return {
        "stage": "" if file.stage is None else str(file.stage),
        "status": _status(sample),
        "reward": "" if sample.reward is None else str(sample.reward),
        "sign": sign,
        "advantage": advantage,
        "chips": chips,
        "ratios": ratios,
        "identity": cut(identity, 200)[0],
        "prompt": prompt,
        "reference": _cut(sample.reference),
        "tokens": list(map(_token, tokens)),
        "notes": notes,
        "since": since,
        "group": [_response(one) for one in sample.group],
        "group_words": f"The whole group: {len(sample.group)} responses, {right} right",
    }


def _token(token: Token) -> dict[str, str]:
    shades = [shade(token, coloring) for coloring in COLORINGS]
    unknown = "unknown" if token.ratio is None else None
    css = " ".join(filter(None, ("t", unknown, *shades, *map(mark_css, token.marks))))
    label, note = cut(token.text, _TOKEN)
    title = f"ratio {plain(token.ratio)}"
    if token.ratio is not None and token.behavior is not None:
        title += f", β {plain(token.behavior)} to π {plain(token.behavior * token.ratio)}"
    title += f", entropy {plain(token.entropy, 2)}" if token.entropy is not None else ""
    title += "".join(f", {cut(mark, 60)[0]}" for mark in token.marks)
    title += f", {note}" if note else ""
    return {"css": css, "title": title, "text": line_ends(label) + ("…" if note else "")}


def _response(response: Response) -> dict[str, str | None]:
    status = (response.status or "not scored").replace("_", " ")
    words = f"{status}, reward {plain(response.reward)}"
    if response.advantage is not None:
        words += f", advantage {plain(response.advantage)}"
    parts = cut(json.dumps(response.parts, ensure_ascii=False), _PARTS)[0]
    text, note = cut(response.text, _RESPONSE)
    return {"facts": words, "parts": parts if response.parts else None, "text": text, "note": note}


def _since(before: tuple[int, Response] | None, responses: Sequence[Response]) -> Any:
    """Return how the first response differs from an earlier evaluation's, word by word."""
    if before is None or not responses:
        return None
    update, response = before
    old, new = (_WORDS.findall(one.text[:_RESPONSE]) for one in (response, responses[0]))
    return _difference(f"the first response after update {update:,}", old, new)


def _difference(other: str, old: Sequence[str], new: Sequence[str]) -> Any:
    """Return two texts of tokens with their differences marked, for the macro `difference`."""
    return other, list(zip(("del", "ins"), differences(old, new), strict=True))


def _cut(text: str | None) -> str | None:
    return None if text is None else cut(text, _PROMPT)[0]


def _status(sample: Sample) -> str:
    return cut((sample.status or "not scored").replace("_", " "), 60)[0]
