"""Rollouts as people read them: token by token, colored by importance ratio.

A file of samples (`samples/*.json`) has a few rollouts as an update saw them, or all responses to a
few held-out problems. It carries its own checksum, so its form is that in which it was written.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mugrpo.report.figures import part
from mugrpo.report.readable import cut, line_ends, plain

RATIOS = (1.05, 1.25, 1.6, 2.5, 5.0, 20.0)  # where the color changes; below 1 downward
NATS = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)  # the same for logprobs
SAID = "environment"  # the mark of tokens that the model did not sample
_MARKS = ("clipped", "vetoed", "masked")  # which have a look of their own

_TOKENS, _ALL_TOKENS = 400, 9000  # of a response, and of a page: about 100 bytes each
_TOKEN, _TEXT, _PARTS = 200, 1500, 200  # characters


@dataclass(frozen=True)
class Token:
    """A response token."""

    text: str
    behavior: float | None  # logprob under the behavior policy
    policy: float | None = None  # logprob under the policy, before the update
    entropy: float | None = None  # nats, of the policy
    marks: tuple[str, ...] = ()  # what the objective did to it: "clipped", "vetoed", ...

    @property
    def ratio(self) -> float | None:
        """Return the policy's probability over the behavior policy's."""
        if self.policy is None or self.behavior is None:
            return None
        return math.exp(max(-700.0, min(700.0, self.policy - self.behavior)))


def tokens_of(entry: dict[str, Any]) -> list[Token]:
    """Return the tokens of a sampled rollout."""
    marks: dict[int, list[str]] = {}
    for mark, places in entry["marks"].items():
        for place in places:
            marks.setdefault(place, []).append(mark)
    texts, old, new, entropies = (
        entry[name] for name in ("tokens", "behavior_logprobs", "logprobs", "entropies")
    )
    tokens = [
        Token(text, known(b), known(p), known(e), tuple(marks.get(place, ())))
        for place, (text, b, p, e) in enumerate(zip(texts, old, new, entropies, strict=True))
    ]
    return said(tokens, entry.get("sampled"))


def known(value: float | None) -> float | None:
    """Return the number, or None if it is not known."""
    return value if value is not None and math.isfinite(value) else None


def said(tokens: Sequence[Token], sampled: Sequence[bool] | None) -> list[Token]:
    """Return `tokens`, with those marked that an environment said: they have no probabilities.

    `sampled` is false for these, or None if there are none.
    """
    every = [True] * len(tokens) if sampled is None else sampled
    return [
        token if own else Token(token.text, None, marks=(SAID,))
        for token, own in zip(tokens, every, strict=True)
    ]


def shade(token: Token) -> str:
    """Return how strongly a token is colored, as a letter and 1 to 6, or "" for not at all.

    A ratio gives b6 (far below 1) to b1 and a1 to a6 (far above 1). Without one, p1 to p6 say that
    the behavior policy found the token unlikely.
    """
    if token.ratio is None:
        step = sum(-(token.behavior or 0.0) >= bound for bound in NATS)
        return f"p{step}" if step else ""
    step = sum(math.exp(abs(math.log(token.ratio))) >= bound for bound in RATIOS)
    return "" if step == 0 else f"{'a' if token.ratio > 1 else 'b'}{step}"


def facts(entry: dict[str, Any], tokens: Iterable[Token]) -> list[str]:
    """Return what is known of a rollout besides its texts: advantage, status, reward, ratios."""
    ratios = [token.ratio for token in tokens if token.ratio is not None]
    advantage = entry.get("advantage")
    plus = "+" if (advantage or 0) > 0 else ""
    return [
        f"advantage {plus}{plain(advantage)}",
        entry["status"].replace("_", " "),
        f"reward {plain(entry['reward'])}",
        f"finished by {entry['finish_reason']}",
        f"ratios {plain(min(ratios))} to {plain(max(ratios))}" if ratios else "no ratios",
    ]


def sampled_rollouts(files: Sequence[dict[str, Any]], runs: int) -> Markup | None:
    """Return the files' rollouts by update, collapsed except for the last update.

    Every response is cut at the same length, by the number of `runs` in the page.
    """
    filled = [file for file in files if file["samples"]]
    if not filled:
        return None
    count = runs * sum(len(file["samples"]) for file in filled)
    limit = max(40, min(_TOKENS, _ALL_TOKENS // count))
    shown = [
        {
            "update": f"{file['update']:,}",
            "where": f"stage {file.get('stage')}, staleness {file.get('staleness')}",
            "rollouts": [_rollout(entry, limit) for entry in file["samples"]],
        }
        for file in filled
    ]
    below, above = ([f"{letter}{step}" for step in range(1, 7)] for letter in "ba")
    bounds = [*(1 / bound for bound in RATIOS[::-1]), *RATIOS]
    return part("sampled", shown, [*below[::-1], "", *above], [plain(b, 2) for b in bounds], _MARKS)


def evaluated_groups(files: Sequence[dict[str, Any]]) -> Markup | None:
    """Return the responses to a few held-out problems at each evaluation that was read."""
    shown = [
        {
            "update": f"{file['update']:,}",
            "groups": [
                {
                    "identity": entry["problem_id"][:_TOKEN],
                    "prompt": entry["prompt"][:_TEXT],
                    "reference": _cut(entry["reference"]),
                    "responses": list(map(_response, entry["group"])),
                }
                for entry in file["samples"]
            ],
        }
        for file in files
        if file["samples"]
    ]
    return part("evaluated", shown) if shown else None


def _rollout(entry: dict[str, Any], limit: int) -> dict[str, Any]:
    tokens, group = tokens_of(entry), entry.get("group") or ()
    advantage, *chips, ratios = facts(entry, tokens)
    prompt, note = cut(entry["prompt"], _TEXT)
    notes = [f"prompt {note}"] if note else []
    if limit < len(tokens):
        notes.append(f"response cut: {limit:,} of {len(tokens):,} tokens shown")
    right = sum(one["status"] == "right" for one in group)
    judged = all(one["status"] != "graded" for one in group)
    place = f"occurrence {entry['occurrence']} · sample {entry['sample']}"
    return {
        "sign": "positive" if (entry["advantage"] or 0) > 0 else "negative",
        "advantage": advantage,
        "chips": chips,
        "ratios": ratios,
        "identity": f"{entry['problem_id']} · {place}"[:_TOKEN],
        "prompt": prompt,
        "reference": _cut(entry.get("reference")),
        "tokens": list(map(_token, tokens[:limit])),
        "notes": notes,
        "group": list(map(_response, group)),
        "group_words": f"The whole group: {len(group)} responses" + f", {right} right" * judged,
    }


def _token(token: Token) -> dict[str, str]:
    marks = (f"mark-{mark if mark in _MARKS else 'other'}" for mark in token.marks)
    css = " ".join(filter(None, ["t", shade(token), *marks]))
    label, note = cut(token.text, _TOKEN)
    title = f"ratio {plain(token.ratio)}"
    if token.policy is not None and token.behavior is not None:
        title += f", β {plain(math.exp(token.behavior))} to π {plain(math.exp(token.policy))}"
    title += f", entropy {plain(token.entropy, 2)}" if token.entropy is not None else ""
    title += "".join(f", {mark[:60]}" for mark in token.marks)
    return {"css": css, "title": title, "text": line_ends(label) + ("…" if note else "")}


def _response(one: dict[str, Any]) -> dict[str, str | None]:
    about = f"{one['status'].replace('_', ' ')}, reward {plain(one['reward'])}"
    if one.get("advantage") is not None:
        about += f", advantage {plain(one['advantage'])}"
    parts = json.dumps(one["parts"], ensure_ascii=False)[:_PARTS] if one.get("parts") else None
    text, note = cut(one["text"], _TOKENS)
    return {"facts": about, "parts": parts, "text": text, "note": note}


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:_TEXT]
