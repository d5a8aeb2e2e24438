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

The models of both make random errors: what they find likeliest is right nearly always, so training
only makes them certain. `Carry` is sums of two numbers, both and the sum written from the ones up,
with a model that forgets most carries:

    prompt    708250162540+195160010003=
    response  8934111725430

The reward is 1 if the whole response is right, else 0. A sum has two to four carries, so the
likeliest response is wrong: the right one has to be found.
"""

import hashlib
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from mugrpo.config.base import GeneratedOptions, WorkerOptions
from mugrpo.config.tasks import ChainOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem, Response, Score, Status
from mugrpo.tasks.base import Task

_ONE_IN = 8  # one prompt in this many is held out


def held_out(prompt: str) -> bool:
    """Return whether `prompt` is kept for evaluation, by a stable hash of its text."""
    return hashlib.sha256(prompt.encode()).digest()[0] % _ONE_IN == 0


class EmbeddedTask(Task, ABC):
    """A task that generates its problems, always the same ones, and judges responses by itself."""

    def __init__(self, options: GeneratedOptions, _: WorkerOptions | None = None) -> None:
        self.options = options

    def train_problems(self) -> Sequence[Problem]:
        return self._problems(self.options.train_problems, evaluation=False)

    def eval_problems(self) -> Sequence[Problem]:
        return self._problems(self.options.eval_problems, evaluation=True)

    def score(self, responses: Iterable[Response]) -> Iterator[Score]:
        for response in responses:
            found = self.read(response.text)
            right = found == response.problem.reference
            if found is None:
                yield Score(Status.NO_ANSWER, 0.0)
            else:
                status = Status.RIGHT if right else Status.WRONG
                yield Score(status, float(right), {"answer": found})

    @abstractmethod
    def read(self, text: str) -> str | None:
        """Return the answer that a response gives, or None."""

    @abstractmethod
    def draw(self, rng: random.Random) -> str:
        """Return a random prompt."""

    @abstractmethod
    def answer(self, prompt: str) -> str:
        """Return the reference answer to `prompt`."""

    def _problems(self, count: int, *, evaluation: bool) -> list[Problem]:
        """Return `count` problems of one side of the split. Raises UsageError if it has fewer."""
        rng = random.Random(f"{self.options.name} {self.options.seed} {evaluation}")
        prompts: dict[str, None] = {}  # insertion-ordered set
        for _ in range(200 * count):
            prompt = self.draw(rng)
            if held_out(prompt) == evaluation:
                prompts[prompt] = None
            if len(prompts) == count:
                return [Problem(p, p, self.answer(p)) for p in prompts]
        side = "eval" if evaluation else "train"
        raise UsageError(
            f"task.{side}_problems = {count}, but there are about {len(prompts)} different ones; "
            "ask for fewer"
        )


MODULUS = 10
_LARGEST_DIGIT = 3
_LAST_STATE = re.compile(r"=(\d)$")


def running_states(prompt: str) -> list[int]:
    """Return the running sum after each term of `prompt`: [3, 5, 4] for "3+2-1="."""
    state, states = 0, []
    for sign, digit in re.findall(r"([+-]?)(\d)", prompt):
        state = (state + (-1 if sign == "-" else 1) * int(digit)) % MODULUS
        states.append(state)
    return states


class Chain(EmbeddedTask):
    """The chain task with `options`."""

    options: ChainOptions

    def read(self, text: str) -> str | None:
        match = _LAST_STATE.search(text)
        return match[1] if match else None

    def written(self, problem: Problem, answer: str) -> str:
        return f"={answer}"

    def draw(self, rng: random.Random) -> str:
        digits = [str(rng.randint(1, _LARGEST_DIGIT)) for _ in range(self.options.terms)]
        signs = "+-" if self.options.minus else "+"
        return digits[0] + "".join(rng.choice(signs) + digit for digit in digits[1:]) + "="

    def answer(self, prompt: str) -> str:
        return str(running_states(prompt)[-1])


LETTERS = "abcdefghijkl"
END = ":"
_SHORTEST, _LONGEST = 8, 16


class Letters(EmbeddedTask):
    """The letters task with `options`."""

    def read(self, text: str) -> str | None:
        return text if text and not set(text) - set(LETTERS) else None

    def draw(self, rng: random.Random) -> str:
        length = rng.randint(_SHORTEST, _LONGEST)
        return "".join(rng.choices(LETTERS, k=length)) + END

    def answer(self, prompt: str) -> str:
        return "".join(sorted(prompt.removesuffix(END)))


_COLUMNS = 12
_FEWEST_CARRIES, _MOST_CARRIES = 2, 4


def carries(above: int, below: int) -> int:
    """Return how many carries the sum has: each takes 10 from a column and adds 1 to the next."""
    sums = (sum(map(int, str(number))) for number in (above, below, above + below))
    return (next(sums) + next(sums) - next(sums)) // 9


class Carry(EmbeddedTask):
    """The carry task with `options`."""

    def read(self, text: str) -> str | None:
        return text if text.isdecimal() else None

    def draw(self, rng: random.Random) -> str:
        while True:
            above, below = rng.randrange(10**_COLUMNS), rng.randrange(10**_COLUMNS)
            if _FEWEST_CARRIES <= carries(above, below) <= _MOST_CARRIES:
                return f"{_from_the_ones(above, _COLUMNS)}+{_from_the_ones(below, _COLUMNS)}="

    def answer(self, prompt: str) -> str:
        above, below = (int(number[::-1]) for number in prompt.removesuffix("=").split("+"))
        return _from_the_ones(above + below, _COLUMNS + 1)


def _from_the_ones(number: int, columns: int) -> str:
    return f"{number:0{columns}}"[::-1]
