"""The embedded task: a chain of small sums, answered by a scratchpad of running sums modulo 10.

    prompt    3+2-1=
    response  3+2=5,5-1=4

The reward is 1 when the last state is right, else 0; the way there is not judged. With eight
terms a response has 41 characters: long enough that one wrong early step spoils the answer and
that stale prefixes matter, small enough for two CPU cores.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence

from mugrpo.config.tasks import ChainOptions
from mugrpo.records import Answer, Problem, Score, Status
from mugrpo.tasks.embedded import distinct_prompts

MODULUS = 10
CHARACTERS = "0123456789+-=,"
_LAST_STATE = re.compile(r"=(\d)$")


def running_states(prompt: str) -> list[int]:
    """The state after each term of `prompt`: "3+2-1=" gives [3, 5, 4]."""
    state, states = 0, []
    for sign, digit in re.findall(r"([+-]?)(\d)", prompt):
        state = (state + (-1 if sign == "-" else 1) * int(digit)) % MODULUS
        states.append(state)
    return states


def demonstration(prompt: str, rng: random.Random | None = None, wrong_steps: float = 0.0) -> str:
    """A scratchpad for `prompt`; with `rng`, each step is wrong with probability `wrong_steps`.

    A wrong step replaces its result by another digit, and the chain goes on from there.
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


class Chain:
    """The chain task under `options`; asking for more problems than there are is a UsageError."""

    def __init__(self, options: ChainOptions) -> None:
        self.options = options

    def train_problems(self) -> Sequence[Problem]:
        return self._problems(self.options.train_problems, evaluation=False)

    def eval_problems(self) -> Sequence[Problem]:
        return self._problems(self.options.eval_problems, evaluation=True)

    def prepare(self) -> None:
        pass

    def score(self, answers: Iterable[Answer]) -> Iterator[Score]:
        for answer in answers:
            found = _LAST_STATE.search(answer.text)
            if found is None:
                yield Score(Status.NO_ANSWER, 0.0)
                continue
            right = found[1] == answer.problem.answer
            status = Status.RIGHT if right else Status.WRONG
            yield Score(status, float(right), {"answer": found[1]})

    def close(self) -> None:
        pass

    def _problems(self, count: int, *, evaluation: bool) -> list[Problem]:
        prompts = distinct_prompts(
            self._prompt,
            count,
            seed=f"chain {self.options.seed}",
            evaluation=evaluation,
            described=f"chains of {self.options.terms} terms with digits up to "
            f"{self.options.max_digit}",
            way_out="raise task.terms or task.max_digit",
        )
        return [Problem(p, p, str(running_states(p)[-1])) for p in prompts]

    def _prompt(self, rng: random.Random) -> str:
        digits = [str(rng.randint(1, self.options.max_digit)) for _ in range(self.options.terms)]
        return digits[0] + "".join(rng.choice("+-") + digit for digit in digits[1:]) + "="
