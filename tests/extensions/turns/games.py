"""Environments for tests: a counter with TRL's contract, one that misbehaves, and functions."""

import os
import random
import time

import numpy as np


class Counter:
    """A counter, written as for TRL."""

    def reset(self, start: int = 0, **_) -> str | None:
        self.value = start
        return f" It is {start}." if start else None

    def add(self, number: int) -> int:
        """Add to the counter.

        Args:
            number: What to add.

        Returns:
            The new value.
        """
        self.value += number
        return self.value

    async def later(self, number: int) -> int:
        """Add to the counter, later.

        Args:
            number: What to add.
        """
        return self.add(number)

    def get_reward(self) -> float:
        return self.value / 10

    def _hidden(self) -> None: ...


class Seeded:
    """Draws from every generator that is seeded."""

    def reset(self, seed: int, log_metric) -> str:
        log_metric("drawn", seed % 10)
        log_metric("drawn", seed % 10 + 1)
        return self.draw()

    def draw(self) -> str:
        """Draw random numbers."""
        return f"{random.random()} {np.random.random()}"


class Misbehaving:
    """Does what it is asked to."""

    def reset(self, answer: str = "", **_) -> str | None:
        self.done: list[str] = []
        if answer:
            return self.do(answer)
        return None

    def do(self, what: str) -> str:
        """Do something.

        Args:
            what: A word, and what it needs.
        """
        word, _, rest = what.partition(" ")
        self.done.append(word)
        if word == "hang":
            time.sleep(1000)
        if word == "die":
            os.kill(os.getpid(), 9)
        if word == "raise":
            raise ValueError(rest)
        if word == "memory":
            self.kept = bytearray(10**10)
        if word == "clock":
            return str(time.time_ns())
        if word == "process":
            return str(os.getpid())
        if word == "long":
            return "w" * 50_000
        if word == "surrogate":
            return "\ud800!"
        return ",".join(self.done)

    def get_reward(self):
        odd = {"text": "one", "nan": float("nan")}
        return odd.get((self.done or ["?"])[-1], len(self.done))


class Resetless:
    def add(self, number: int) -> int:
        """Add.

        Args:
            number: What to add.
        """
        return number


class Bare:
    def reset(self, **_): ...


class Unmade:
    def __init__(self, size: int) -> None:
        raise ValueError(f"no size {size}")

    def reset(self, **_): ...


def higher(messages, answer, limit=3):
    """Say whether the secret is higher, until it is guessed."""
    guess = messages[-1]["content"]
    if guess == answer:
        return 1 - 0.25 * (sum(one["role"] == "assistant" for one in messages) - 1)
    if len(messages) > 2 * limit:
        return None
    return "higher" if guess < answer else "lower"


def nonsense(messages, answer):
    return {"list": [], "role": {"role": "system", "content": "x"}, "set": {1}}[answer]


def double(number: int) -> int:
    """Double a number.

    Args:
        number: The number.
    """
    return 2 * number


def add(number: int) -> int:
    """Add one.

    Args:
        number: The number.
    """
    return number + 1
