"""Whole groups as text: all responses to a problem, with the reference and their scores."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from mugrpo.report.markup import Markup, cut, tag
from mugrpo.report.readable import plain
from mugrpo.report.samples import EvaluationFile, Response, differences

_LONGEST_PROMPT = 1500  # characters
_LONGEST_RESPONSE = 400
_LONGEST_PARTS = 200
_WORDS = re.compile(r"\w+|\W")


def evaluated_groups(files: Sequence[EvaluationFile]) -> Markup | None:
    """Return the responses to a few held-out problems at each evaluation that was read."""
    filled = [file for file in files if file.groups]
    blocks, last = [], dict[str, tuple[int, Response]]()
    for file in filled:
        articles = [
            tag(
                "article",
                tag("div", cut(group.problem_id, 200)[0], class_="identity"),
                tag("div", tag("bdi", cut(group.prompt, _LONGEST_PROMPT)[0]), class_="prompt"),
                reference_line(group.reference),
                response_list(group.responses),
                _since(last.get(group.problem_id), group.responses),
            )
            for group in file.groups
        ]
        last |= {g.problem_id: (file.update, g.responses[0]) for g in file.groups if g.responses}
        heading = tag("b", f"Evaluation after update {file.update:,}")
        blocks.append(tag("details", tag("summary", heading), *articles))
    return tag("div", *blocks, class_="samples") if blocks else None


def difference(other: str, old: Sequence[str], new: Sequence[str]) -> Markup:
    """Return two texts of tokens side by side, collapsed, with their differences marked."""
    sides = [
        tag(
            "div",
            *(tag(mark if differs else "span", text) for text, differs in pieces),
            class_="response",
        )
        for mark, pieces in zip(("del", "ins"), differences(old, new), strict=True)
    ]
    title = f"Differences from {other}, which is on the left"
    return tag("details", tag("summary", title), tag("div", *sides, class_="sides"))


def reference_line(reference: str | None) -> Markup | None:
    """Return the problem's reference answer, or None if it is not known."""
    if reference is None:
        return None
    return tag("p", "reference: ", tag("bdi", cut(reference, _LONGEST_PROMPT)[0]), class_="muted")


def whole_group(responses: Sequence[Response]) -> Markup | None:
    """Return all responses of a group, collapsed, or None if there are none."""
    if not responses:
        return None
    right = sum(response.status == "right" for response in responses)
    heading = f"The whole group: {len(responses)} responses, {right} right"
    return tag("details", tag("summary", heading), response_list(responses))


def response_list(responses: Sequence[Response]) -> Markup:
    """Return responses as a list: status, reward, parts of the score, text."""
    return tag("ul", *map(_item, responses), class_="group")


def _since(before: tuple[int, Response] | None, responses: Sequence[Response]) -> Markup | None:
    """Return how the first response differs from an earlier evaluation's, word by word."""
    if before is None or not responses:
        return None
    update, response = before
    texts = (_WORDS.findall(one.text[:_LONGEST_RESPONSE]) for one in (response, responses[0]))
    return difference(f"the first response after update {update:,}", *texts)


def _item(response: Response) -> Markup:
    facts = (
        f"{(response.status or 'not scored').replace('_', ' ')}, reward {plain(response.reward)}"
    )
    if response.advantage is not None:
        facts += f", advantage {plain(response.advantage)}"
    parts = cut(json.dumps(response.parts, ensure_ascii=False), _LONGEST_PARTS)[0]
    text, note = cut(response.text, _LONGEST_RESPONSE)
    return tag(
        "li",
        tag("span", facts, class_="chip"),
        tag("span", parts, class_="muted") if response.parts else None,
        " ",
        tag("bdi", text),
        tag("span", f" {note}", class_="muted") if note else None,
    )
