"""The first embedded task: a chain of small sums, answered by running sums modulo 10.

    prompt    3+2-1=
    response  3+2=5,5-1=4

The reward is 1 if the last state is right, else 0. The steps before it are not judged. With eight
terms a response has 41 characters. That is long enough that a wrong early step spoils the answer
and that stale prefixes matter, and short enough for two CPU cores.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator

from mugrpo.config.tasks import ChainOptions
from mugrpo.disk.records import Answer, Score, Status
from mugrpo.tasks.embedded import EmbeddedTask

MODULUS = 10
CHARACTERS = "0123456789+-=,"
_LAST_STATE = re.compile(r"=(\d)$")


def running_states(prompt: str) -> list[int]:
    """Return the running sum after each term of `prompt`: [3, 5, 4] for "3+2-1="."""
    state, states = 0, []
    for sign, digit in re.findall(r"([+-]?)(\d)", prompt):
        state = (state + (-1 if sign == "-" else 1) * int(digit)) % MODULUS
        states.append(state)
    return states


def demonstration(prompt: str, rng: random.Random | None = None, wrong_steps: float = 0.0) -> str:
    """Return a response to `prompt`.

    If `rng` is given, each step is wrong with probability `wrong_steps`: another digit replaces its
    result, and the chain continues from there.
    """
    terms = re.findall(r"([+-]?)(\d)", prompt)
    state, steps = int(terms[0][1]), []
    for sign, digit in terms[1:]:
        result = (state + (-1 if sign == "-" else 1) * int(digit)) % MODULUS
        if rng is not None and rng.random() < wrong_steps:
            result = (result + rng.randint(1, MODULUS - 1)) % MODULUS
        steps.append(f"{state}{sign}{digit}={result}")
        state = result
    return ",".join(steps)


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
