"""The base of embedded tasks: randomly generated problems, and a split by a hash of the prompt."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mugrpo.config.tasks import EmbeddedOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Answer, Problem, Score

_HELD_OUT_SHARE = 8  # one prompt in this many is held out


def held_out(prompt: str) -> bool:
    """Return whether `prompt` is kept for evaluation, by a stable hash of its text."""
    return hashlib.sha256(prompt.encode()).digest()[0] % _HELD_OUT_SHARE == 0


class EmbeddedTask(ABC):
    """A task that generates its problems, always the same ones, and judges answers by itself."""

    def __init__(self, options: EmbeddedOptions) -> None:
        self.options = options

    def train_problems(self) -> Sequence[Problem]:
        return self._problems(self.options.train_problems, evaluation=False)

    def eval_problems(self) -> Sequence[Problem]:
        return self._problems(self.options.eval_problems, evaluation=True)

    def prepare(self, log: Path) -> list[str]:
        return []

    @abstractmethod
    def score(self, answers: Iterable[Answer]) -> Iterator[Score]: ...

    def close(self) -> None:
        return

    @abstractmethod
    def draw(self, rng: random.Random) -> str:
        """Return a random prompt."""

    @abstractmethod
    def answer(self, prompt: str) -> str:
        """Return the reference answer to `prompt`."""

    @abstractmethod
    def too_few(self) -> tuple[str, str]:
        """Return (what the prompts are, how to get more different ones), for an error message."""

    def _problems(self, count: int, *, evaluation: bool) -> list[Problem]:
        """Return problems with `count` different prompts of one side of the split.

        Raises UsageError if there are not enough.
        """
        rng = random.Random(f"{self.options.name} {self.options.seed} {evaluation}")
        prompts: dict[str, None] = {}  # insertion-ordered set
        for _ in range(200 * count):
            if len(prompts) == count:
                return [Problem(p, p, self.answer(p)) for p in prompts]
            prompt = self.draw(rng)
            if held_out(prompt) == evaluation:
                prompts[prompt] = None
        side = "eval" if evaluation else "train"
        kind, way_out = self.too_few()
        raise UsageError(
            f"task.{side}_problems = {count}, but {kind} give about {len(prompts)} different "
            f"{side} problems; ask for fewer, or {way_out}"
        )
