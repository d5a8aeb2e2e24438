"""Rollouts as people read them, and sampled ones as an update saw them (`samples/*.json`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from mugrpo.report.readable import plain

COLORINGS = {  # what tokens can be colored by, and what its strong colors say
    "ratio": "importance ratio: below and above 1",
    "behavior": "behavior logprob: unlikely, in nats",
    "entropy": "entropy: undecided, in nats",
}
RATIOS = (1.05, 1.25, 1.6, 2.5, 5.0, 20.0)  # where the color changes; below 1 downward
NATS = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)
SAID = "environment"  # the mark of tokens that the model did not sample
_LETTERS = {"behavior": "p", "entropy": "e"}
_LONGEST_EXACT = 2000  # tokens; differences of longer texts overlook some common tokens

_BEYOND = 1e100  # sums of smaller numbers stay finite; float32 ends at 3e38


Piece = tuple[str, bool]  # text, and whether it differs


@dataclass(frozen=True)
class Token:
    """A response token; `ratio` is the policy's probability over the behavior policy's."""

    text: str
    ratio: float | None
    behavior: float | None  # probability under the behavior policy
    marks: tuple[str, ...] = ()  # what the objective did to it: "clipped", "vetoed", ...
    entropy: float | None = None  # nats, of the policy


@dataclass(frozen=True)
class Response:
    """A response as text, with its score."""

    text: str
    status: str | None
    reward: float | None
    advantage: float | None
    parts: dict[str, Any]


@dataclass(frozen=True)
class Group:
    """The responses to one problem."""

    problem_id: str
    prompt: str
    reference: str | None
    responses: list[Response]


@dataclass(frozen=True)
class EvaluationFile:
    """All responses to a few held-out problems, after `update` updates."""

    update: int
    groups: list[Group]


@dataclass(frozen=True)
class Sample:
    """A rollout with its score and its tokens.

    `group` has all responses to its problem if it is the first shown of them; `reference` is None,
    and `group` empty, in runs of earlier versions.
    """

    problem_id: str
    occurrence: int
    sample: int
    prompt: str
    status: str | None
    reward: float | None
    advantage: float | None
    finish_reason: str
    tokens: list[Token]
    reference: str | None = None
    group: list[Response] = field(default_factory=list)


@dataclass(frozen=True)
class SampleFile:
    """A few rollouts of update number `update` (from 1)."""

    update: int
    stage: int | None
    staleness: int | None
    samples: list[Sample]


def read_sample_file(document: Any) -> SampleFile:
    """Return the samples in a file's parsed JSON.

    Raises ValueError, KeyError or TypeError if `document` is not a file of samples.
    """
    return SampleFile(
        update=int(document["update"]),
        stage=_whole(document.get("stage")),
        staleness=_whole(document.get("staleness")),
        samples=[_sample(entry) for entry in document["samples"]],
    )


def read_evaluation_file(document: Any) -> EvaluationFile:
    """Return the samples in an evaluation's file, as `read_sample_file` does."""
    groups = [
        Group(str(entry["problem_id"]), str(entry["prompt"]), _reference(entry), _responses(entry))
        for entry in document["samples"]
    ]
    return EvaluationFile(int(document["update"]), groups)


def _measured(token: Token, coloring: str) -> float | None:
    """Return a token's ratio, its -logprob under the behavior policy, or its entropy."""
    if coloring == "behavior":
        return None if token.behavior is None else -math.log(token.behavior)
    return token.ratio if coloring == "ratio" else token.entropy


def shade(token: Token, coloring: str) -> str | None:
    """Return how strongly a token is colored, as a letter and 1 to 6, or "" for not at all.

    A ratio gives b6 (far below 1) to b1 and a1 to a6 (far above 1), an unlikely token p1 to p6, an
    entropy e1 to e6. Return None if the value is not stored.
    """
    if (value := _measured(token, coloring)) is None:
        return None
    if coloring != "ratio":
        step = sum(value >= bound for bound in NATS)
        return f"{_LETTERS[coloring]}{step}" if step else ""
    away = math.exp(abs(math.log(value))) if value > 0 else math.inf
    step = sum(away >= bound for bound in RATIOS)
    return "" if step == 0 else f"{'a' if value > 1 else 'b'}{step}"


def stored_colorings(tokens: Iterable[Token]) -> list[str]:
    """Return the colorings that at least one of `tokens` has a value for."""
    seen = {c for token in tokens for c in COLORINGS if _measured(token, c) is not None}
    return [coloring for coloring in COLORINGS if coloring in seen]


def scale(coloring: str) -> tuple[list[str], list[float]]:
    """Return a coloring's shades in order, and the value at each border between two of them."""
    steps = range(1, len(NATS) + 1)
    if coloring != "ratio":
        return ["", *(f"{_LETTERS[coloring]}{step}" for step in steps)], [*NATS]
    below, above = ([f"{letter}{step}" for step in steps] for letter in "ba")
    return [*below[::-1], "", *above], [*(1 / bound for bound in RATIOS[::-1]), *RATIOS]


def facts(sample: Sample) -> list[str]:
    """Return what is known of a rollout besides its texts: advantage, status, reward, ratios."""
    ratios = [token.ratio for token in sample.tokens if token.ratio is not None]
    plus = "+" if (sample.advantage or 0) > 0 else ""
    return [
        f"advantage {plus}{plain(sample.advantage)}",
        (sample.status or "not scored").replace("_", " "),
        f"reward {plain(sample.reward)}",
        f"finished by {sample.finish_reason}",
        f"ratios {plain(min(ratios))} to {plain(max(ratios))}" if ratios else "no ratios",
    ]


def differences(old: Sequence[str], new: Sequence[str]) -> tuple[list[Piece], list[Piece]]:
    """Return two texts of tokens as pieces, each with whether the other text lacks it."""
    sides: tuple[list[Piece], list[Piece]] = [], []
    matcher = SequenceMatcher(None, old, new, autojunk=len(new) > _LONGEST_EXACT)
    for kind, a, b, c, d in matcher.get_opcodes():
        for pieces, tokens in zip(sides, (old[a:b], new[c:d]), strict=True):
            if tokens:
                pieces.append(("".join(tokens), kind != "equal"))
    return sides


def _responses(entry: Any) -> list[Response]:
    return [
        Response(
            text=str(one["text"]),
            status=None if one.get("status") is None else str(one["status"]),
            reward=finite(one.get("reward")),
            advantage=finite(one.get("advantage")),
            parts=dict(one.get("parts") or {}),
        )
        for one in entry.get("group") or ()
    ]


def _reference(entry: Any) -> str | None:
    return None if entry.get("reference") is None else str(entry["reference"])


def _sample(entry: Any) -> Sample:
    texts = [str(token) for token in entry["tokens"]]
    behavior = [finite(value) for value in entry["behavior_logprobs"]]
    policy = [finite(value) for value in entry["logprobs"]]
    entropies = [finite(value) for value in entry.get("entropies") or [None] * len(texts)]
    if not len(texts) == len(behavior) == len(policy) == len(entropies):
        raise ValueError(
            f"{len(texts)} tokens with {len(behavior)} and {len(policy)} logprobs and "
            f"{len(entropies)} entropies in one sample"
        )
    marks: dict[int, list[str]] = {}
    for mark, places in dict(entry.get("marks") or {}).items():
        for place in places:
            marks.setdefault(int(place), []).append(str(mark))
    tokens = [
        Token(text, _ratio(new, old), probability(old), tuple(marks.get(place, ())), entropy)
        for place, (text, new, old, entropy) in enumerate(
            zip(texts, policy, behavior, entropies, strict=True)
        )
    ]
    return Sample(
        problem_id=str(entry["problem_id"]),
        occurrence=int(entry["occurrence"]),
        sample=int(entry["sample"]),
        prompt=str(entry["prompt"]),
        status=None if entry.get("status") is None else str(entry["status"]),
        reward=finite(entry.get("reward")),
        advantage=finite(entry.get("advantage")),
        finish_reason=str(entry.get("finish_reason") or "unknown"),
        tokens=said(tokens, entry.get("sampled")),
        reference=_reference(entry),
        group=_responses(entry),
    )


def said(tokens: Sequence[Token], sampled: Sequence[bool] | None) -> list[Token]:
    """Return `tokens`, with those marked that an environment said: they have no probabilities.

    `sampled` is false for these, or None if there are none.
    """
    every = [True] * len(tokens) if sampled is None else sampled
    return [
        token if own else Token(token.text, None, None, (SAID,))
        for token, own in zip(tokens, every, strict=True)
    ]


def _ratio(logprob: float | None, behavior: float | None) -> float | None:
    return None if logprob is None or behavior is None else probability(logprob - behavior)


def probability(value: float | None) -> float | None:
    """Return e to the power of `value`, clamped to the range of a float."""
    return None if value is None else math.exp(max(-700.0, min(700.0, value)))


def finite(value: Any) -> float | None:
    """Return a number as a float, or None if it is None, not finite, or absurdly large."""
    if value is None or not abs(value) < _BEYOND:
        return None
    return float(value)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None
