"""The second embedded task: letters in alphabetical order, without a scratchpad.

    prompt    hgbaccgd:
    response  abccdggh

The reward is 1 if the whole response is right, else 0. Unlike in the chain task, responses vary in
length, and a letter follows from the prompt more than from the letter before it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from mugrpo.config.tasks import LettersOptions
from mugrpo.disk.records import Answer, Score, Status
from mugrpo.tasks.embedded import EmbeddedTask

LETTERS = "abcdefghijkl"
END = ":"


def demonstration(prompt: str, rng: random.Random | None = None, wrong_steps: float = 0.0) -> str:
    """Return a response to `prompt`.

    If `rng` is given, each letter is wrong with probability `wrong_steps`: a different one of the
    remaining letters, if there is one, takes its place. The remaining letters continue in order.
    """
    remaining, answer = sorted(prompt.removesuffix(END)), []
    while remaining:
        others = [letter for letter in remaining if letter != remaining[0]]
        wrong = rng is not None and others and rng.random() < wrong_steps
        chosen = rng.choice(others) if rng and wrong else remaining[0]
        remaining.remove(chosen)
        answer.append(chosen)
    return "".join(answer)


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
        return demonstration(prompt)

    def too_few(self) -> tuple[str, str]:
        return f"{self.options.shortest} to {self.options.longest} letters", "raise task.longest"
