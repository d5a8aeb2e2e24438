"""Throughput of mathematical verification, and whether hostile answers stall it.

The first measurement is of ordinary answers, eight different ones per problem. The second has as
many answers, a share of which are hostile. Prints for each the counts by status, the seconds, the
answers per second, and the number of worker processes that are left.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

from mugrpo.config.base import WorkerOptions
from mugrpo.config.rewards import MathOptions
from mugrpo.disk.records import Answer, FinishReason, Problem
from mugrpo.rewards.grading import Grader

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.rewards.hostile import HOSTILE

GROUP = 8
FORMS = (
    ("{n}", r"Adding up, ${a} + {b} = {n}$. The answer is $\boxed{{{n}}}$."),
    ("{n}", "First {a}, then {b} more. So the answer is {n}."),
    (r"\frac{{{a}}}{{{p}}}", r"This gives \[ x = \frac{{{a}}}{{{p}}} \] so \boxed{{x = {a}/{p}}}."),
    (r"{a}\sqrt{{{p}}}", r"Hence the length is $\boxed{{{a}\sqrt{{{p}}} \text{{ cm}}}}$."),
    ("{a}, {n}", r"The solutions are \boxed{{x = {n} \text{{ or }} x = {a}}}."),
    ("({a}, {n})", r"The lines meet at $\boxed{{({a}, {n})}}$."),
    ("{a}x^2 + {b}x", r"Therefore $f(x) = \boxed{{x({a}x + {b})}}$."),
    ("{a}.5", r"We get \boxed{{{a}\frac{{1}}{{2}}}}."),
)


def ordinary(count: int, rng: random.Random) -> Iterator[Answer]:
    """Yield answers of the kinds that data sets have. Every second one is wrong."""
    for index in range(count):
        reference, text = FORMS[index // GROUP % len(FORMS)]
        if index % GROUP == 0:
            a, b = rng.randint(1000, 9999), rng.randint(1000, 9999)
            numbers = {"a": a, "b": b, "n": a + b, "p": rng.choice([2, 3, 5, 7, 11, 13])}
            problem = Problem(str(index // GROUP), "How much?", reference.format(**numbers))
        wrong = {name: number + index % GROUP for name, number in numbers.items()}
        answered = text.format(**(wrong if index % 2 else numbers))
        yield Answer(problem, f"{answered} Attempt {index}!", [], FinishReason.STOP)


def mixed(count: int, share: float, rng: random.Random) -> Iterator[Answer]:
    """Yield the answers of `ordinary`, but with a hostile text in a share of them."""
    hostile = rng.sample(range(count), round(share * count))
    texts = dict(zip(hostile, cycle(HOSTILE.values()), strict=False))
    for index, answer in enumerate(ordinary(count, rng)):
        text = texts.get(index, answer.text)
        yield Answer(answer.problem, text, [], FinishReason.STOP)


def workers_left() -> int:
    """Return how many of the workers that this process started are left."""
    left = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            parent = (folder / "stat").read_text().rpartition(") ")[2].split()[1]
        except OSError:
            continue
        left += b"mugrpo.rewards.worker" in command and int(parent) == os.getpid()
    return left


def measure(name: str, answers: Iterator[Answer], options: WorkerOptions) -> None:
    with Grader((MathOptions(),), options) as grader:
        grader.start()
        began = time.monotonic()
        counts = Counter(score.status.value for score in grader.scores(answers))
        seconds = time.monotonic() - began
    by_status = ", ".join(f"{status} {count}" for status, count in counts.most_common())
    total = counts.total()
    print(f"{name}: {total} answers in {seconds:.1f} s, {total / seconds:.0f}/s: {by_status}")
    print(f"{name}: {workers_left()} worker processes left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, default=5000)
    parser.add_argument("--hostile", type=float, default=0.01, help="share of hostile answers")
    parser.add_argument("--timeout", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    options = WorkerOptions(count=args.workers, timeout=args.timeout)
    measure("ordinary", ordinary(args.answers, random.Random(0)), options)
    measure("hostile", mixed(args.answers, args.hostile, random.Random(0)), options)


if __name__ == "__main__":
    main()
