"""The reward of problems from reasoning-gym: the score that their data set gives an answer."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

# here and not at the first call, whose time is limited
import reasoning_gym


def score_answer(
    completions: Sequence[str | list[dict[str, str]]],
    entry: Sequence[dict[str, Any]],
    dataset: Sequence[str],
    config: Sequence[dict[str, Any]],
    part: Sequence[str],
) -> list[float]:
    """Return what reasoning-gym's `score_answer` gives each completion, from 0 to 1.

    `entry` is the problem as reasoning-gym made it. `config` is that of the data set, because some
    scores depend on it. `part` says where in a completion the answer is.
    """
    columns = zip(completions, entry, dataset, config, part, strict=True)
    return [
        float(_scorer(name, json.dumps(options, sort_keys=True))(extracted(said, form), problem))
        for said, problem, name, options, form in columns
    ]


def extracted(completion: str | list[dict[str, str]], part: str) -> str | None:
    """Return the answer in a completion, or None: see ReasoningGymOptions.answer.

    reasoning-gym itself reads the text between the last <answer> tags.
    """
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    if part == "tags":
        answer: str | None = reasoning_gym.utils.extract_answer(text)
        return answer
    text = text.strip()
    if part == "last_line":
        text = text.rpartition("\n")[2].strip()
    elif part == "last_word":
        text = text.rpartition("\n")[2].rpartition(" ")[2].removesuffix(".")
    return text or None


@cache
def _scorer(dataset: str, config: str) -> Any:
    return reasoning_gym.create_dataset(dataset, **json.loads(config)).score_answer
