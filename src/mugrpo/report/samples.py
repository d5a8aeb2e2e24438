"""Sampled rollouts as an update saw them: `samples/update-NNNNNN.json`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

_BEYOND = 1e100  # sums of smaller numbers stay finite; float32 ends at 3e38


@dataclass(frozen=True)
class Token:
    """A response token; `ratio` is the policy's probability over the behavior policy's."""

    text: str
    ratio: float | None
    behavior: float | None  # probability under the behavior policy
    marks: tuple[str, ...]  # what the objective did to it: "clipped", "vetoed", ...


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
    if not len(texts) == len(behavior) == len(policy):
        raise ValueError(
            f"{len(texts)} tokens with {len(behavior)} and {len(policy)} logprobs in one sample"
        )
    marks: dict[int, list[str]] = {}
    for mark, places in dict(entry.get("marks") or {}).items():
        for place in places:
            marks.setdefault(int(place), []).append(str(mark))
    return Sample(
        problem_id=str(entry["problem_id"]),
        occurrence=int(entry["occurrence"]),
        sample=int(entry["sample"]),
        prompt=str(entry["prompt"]),
        status=None if entry.get("status") is None else str(entry["status"]),
        reward=finite(entry.get("reward")),
        advantage=finite(entry.get("advantage")),
        finish_reason=str(entry.get("finish_reason") or "unknown"),
        tokens=[
            Token(text, _ratio(new, old), _exp(old), tuple(marks.get(place, ())))
            for place, (text, new, old) in enumerate(zip(texts, policy, behavior, strict=True))
        ],
        reference=_reference(entry),
        group=_responses(entry),
    )


def _ratio(logprob: float | None, behavior: float | None) -> float | None:
    return None if logprob is None or behavior is None else _exp(logprob - behavior)


def _exp(value: float | None) -> float | None:
    """Return e to the power of `value`, clamped to the range of a float."""
    return None if value is None else math.exp(max(-700.0, min(700.0, value)))


def finite(value: Any) -> float | None:
    """Return a number as a float, or None if it is None, not finite, or absurdly large."""
    if value is None or not abs(value) < _BEYOND:
        return None
    return float(value)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None
