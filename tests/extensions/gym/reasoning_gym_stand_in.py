"""A module of the shape of reasoning_gym 0.1.25.

`sums` is as it should be. `shuffled` draws from a set of texts, whose order follows Python's hash
seed, `drifting` by the process. `failing` has no problem 3. `loose` pays for any text. `open` names
no answers.
"""

import os
import re
import types
from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass
class SumsConfig:
    largest: int = 99
    bonus: float = 0.0
    seed: int = 0
    size: int = 500

    def __post_init__(self) -> None:
        assert self.largest > 0, "largest must be positive"


class Sums:
    def __init__(self, config: SumsConfig) -> None:
        self.config = config

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = Random(self.config.seed + index)
        a, b = (rng.randint(0, self.config.largest) for _ in range(2))
        return {"question": f"{a}+{b}", "answer": str(a + b), "metadata": {"terms": (a, b)}}

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        if answer is None:
            return 0.0
        right = int(answer) == sum(entry["metadata"]["terms"])
        return 1.0 if right else 0.25 + self.config.bonus


WORDS = {f"word{n}" for n in range(50)}


class Shuffled(Sums):
    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = Random(self.config.seed + index)
        question = " ".join(rng.sample(list(WORDS), 3))
        return {"question": question, "answer": question, "metadata": {}}

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        return float(answer == entry["answer"])


class Drifting(Sums):
    def __getitem__(self, index: int) -> dict[str, Any]:
        entry = super().__getitem__(index)
        return {**entry, "metadata": {**entry["metadata"], "made_by": os.getpid()}}


class Failing(Sums):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 3:
            raise RuntimeError("no such sum")
        return super().__getitem__(index)


class Loose(Sums):
    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        return float(bool(answer))


class Open(Sums):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "answer": None}

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        return 0.0 if answer is None else 0.01


class Running(Sums):
    """Its scores evaluate an answer, not in `score_answer` itself."""

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        return float(any(self._value(part) for part in [answer]))

    def _value(self, answer: str | None) -> Any:
        return next(eval(text) for text in [answer or "0"])


KINDS = {
    kind.__name__.lower(): kind
    for kind in (Sums, Running, Loose, Open, Shuffled, Drifting, Failing)
}
factory = types.SimpleNamespace(DATASETS={**dict.fromkeys(KINDS), "composite": None})


def create_dataset(name: str, **config: Any) -> Sums:
    return KINDS[name](SumsConfig(**config))


def _extract_answer(completion: str) -> str | None:
    found = re.findall(r"<answer>\s?(.*?)\s?</answer>", completion, re.DOTALL)
    return found[-1].strip() if found else None


utils = types.SimpleNamespace(extract_answer=_extract_answer)
