"""The embedded tasks: randomly generated problems, and a split by a hash of the prompt.

`Chain` is a chain of small sums, answered by running sums modulo 10:

    prompt    3+2-1=
    response  3+2=5,5-1=4

The reward is 1 if the last state is right, else 0. The steps before it are not judged. With eight
terms a response has 41 characters. That is long enough that a wrong early step spoils the answer
and that stale prefixes matter, and short enough for two CPU cores.

`Letters` is letters in alphabetical order, without a scratchpad:

    prompt    hgbaccgd:
    response  abccdggh

The reward is 1 if the whole response is right, else 0. Unlike in the chain task, responses vary in
length, and a letter follows from the prompt more than from the letter before it.
"""

from __future__ import annotations

import hashlib
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mugrpo.config.tasks import ChainOptions, EmbeddedOptions, LettersOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Answer, Problem, Score, Status

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


MODULUS = 10
_LAST_STATE = re.compile(r"=(\d)$")


def running_states(prompt: str) -> list[int]:
    """Return the running sum after each term of `prompt`: [3, 5, 4] for "3+2-1="."""
    state, states = 0, []
    for sign, digit in re.findall(r"([+-]?)(\d)", prompt):
        state = (state + (-1 if sign == "-" else 1) * int(digit)) % MODULUS
        states.append(state)
    return states


class Chain(EmbeddedTask):
    """The chain task with `options`.

    The methods that return problems raise UsageError if more are requested than exist.
    """

    options: ChainOptions

    def score(self, answers: Iterable[Answer]) -> Iterator[Score]:
        for answer in answers:
            match = _LAST_STATE.search(answer.text)
            if match is None:
                yield Score(Status.NO_ANSWER, 0.0)
                continue
            right = match[1] == answer.problem.answer
            status = Status.RIGHT if right else Status.WRONG
            yield Score(status, float(right), {"answer": match[1]})

    def draw(self, rng: random.Random) -> str:
        digits = [str(rng.randint(1, self.options.max_digit)) for _ in range(self.options.terms)]
        signs = "+-" if self.options.minus else "+"
        return digits[0] + "".join(rng.choice(signs) + digit for digit in digits[1:]) + "="

    def answer(self, prompt: str) -> str:
        return str(running_states(prompt)[-1])

    def too_few(self) -> tuple[str, str]:
        terms, most = self.options.terms, self.options.max_digit
        kind = f"chains of {terms} terms with digits up to {most}"
        return kind, "raise task.terms or task.max_digit"


LETTERS = "abcdefghijkl"
END = ":"


class Letters(EmbeddedTask):
    """The letters task with `options`.

    The methods that return problems raise UsageError if more are requested than exist.
    """

    options: LettersOptions

    def score(self, answers: Iterable[Answer]) -> Iterator[Score]:
        for answer in answers:
            if not answer.text or set(answer.text) - set(LETTERS):
                yield Score(Status.NO_ANSWER, 0.0)
                continue
            right = answer.text == answer.problem.answer
            status = Status.RIGHT if right else Status.WRONG
            yield Score(status, float(right), {"answer": answer.text})

    def draw(self, rng: random.Random) -> str:
        length = rng.randint(self.options.shortest, self.options.longest)
        return "".join(rng.choices(LETTERS, k=length)) + END

    def answer(self, prompt: str) -> str:
        return "".join(sorted(prompt.removesuffix(END)))

    def too_few(self) -> tuple[str, str]:
        return f"{self.options.shortest} to {self.options.longest} letters", "raise task.longest"
