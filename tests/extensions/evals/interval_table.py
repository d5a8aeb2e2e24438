"""Simulated evaluations, and the table of docs/evaluation.md that compares methods on them.

python -m tests.extensions.evals.interval_table writes it. R repetitions, P problems, K responses
to each.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from scipy.special import betaincinv, stdtrit

from mugrpo.rollouts.statistics import interval

# The probability of a right response is drawn for each problem from Beta(a, b).
DIFFICULTIES = {
    "most all or nothing, Beta(0.3, 0.3)": (0.3, 0.3),
    "hard, Beta(0.2, 1.8)": (0.2, 1.8),
    "uniform, Beta(1, 1)": (1.0, 1.0),
    "easy, Beta(9.7, 0.3)": (9.7, 0.3),
}
PROBLEMS, RESPONSES = (30, 100, 500), (1, 4, 32)
CELLS = list(itertools.product(DIFFICULTIES, PROBLEMS, RESPONSES))
PAGE = Path(__file__).parents[3] / "docs" / "evaluation.md"
HEADING = "| difficulties | P | k |"
_RESAMPLES = 500


def draw_right(rng, difficulties: str, repetitions: int, problems: int, k: int):
    """Return how many of k responses to each problem are right."""
    return rng.binomial(k, rng.beta(*DIFFICULTIES[difficulties], (repetitions, problems)))


def truth(difficulties: str) -> float:
    a, b = DIFFICULTIES[difficulties]
    return a / (a + b)


def coverage(low_R, high_R, true: float) -> float:
    """Return the share of the intervals that hold the true value, in percent."""
    return 100 * float(np.mean((low_R <= true) & (true <= high_R)))


def student(right, k):
    values, problems = right / k, right.shape[1]
    half = stdtrit(problems - 1, 0.975) * values.std(1, ddof=1) / problems**0.5
    return values.mean(1) - half, values.mean(1) + half


def effective(right, k):
    mean, problems = right.mean(1) / k, right.shape[1]
    variance = (right / k).var(1, ddof=1) / problems
    with np.errstate(divide="ignore", invalid="ignore"):
        n = np.nan_to_num(mean * (1 - mean) / variance, nan=problems, posinf=problems * k)
    return mean, np.clip(n, problems, problems * k)


def wilson(right, k):
    mean, n = effective(right, k)
    middle = (mean + 1.96**2 / 2 / n) / (1 + 1.96**2 / n)
    half = 1.96 / (1 + 1.96**2 / n) * np.sqrt(mean * (1 - mean) / n + (1.96 / 2 / n) ** 2)
    return middle - half, middle + half


def korn_graubard(right, k):
    """Clopper and Pearson's interval with n* = n (1.96 / t)^2, as Korn and Graubard (1998)."""
    mean, n = effective(right, k)
    n = n * (1.96 / stdtrit(right.shape[1] - 1, 0.975)) ** 2
    x = mean * n
    low = np.where(x > 0, betaincinv(np.maximum(x, 1e-9), n - x + 1, 0.025), 0)
    high = np.where(mean < 1, betaincinv(x + 1, np.maximum(n - x, 1e-9), 0.975), 1)
    return low, high


def bootstrap(right, k, rng):
    """Percentiles of means over problems drawn again, with their responses drawn again."""
    ends = []
    for counts in right:
        shares = np.bincount(counts, minlength=k + 1) / len(counts)
        drawn = rng.multinomial(len(counts), shares, size=_RESAMPLES)
        totals = rng.binomial(drawn * k, np.arange(k + 1) / k).sum(1)
        ends.append(np.quantile(totals / len(counts) / k, [0.025, 0.975]))
    low, high = np.array(ends).T
    return low, high


def rows(repetitions: int, bootstraps: int):
    """Yield the lines of the table."""
    rng = np.random.default_rng(0)
    methods = {
        "**Wilson, effective n, t**": lambda right, k: interval(right / k, k),
        "Wilson, effective n, normal": wilson,
        "Student's t": student,
        "Korn-Graubard": korn_graubard,
        "two-level bootstrap": lambda right, k: bootstrap(right[:bootstraps], k, rng),
    }
    yield f"{HEADING} {' | '.join(methods)} |"
    yield "| --- | --- | --- |" + " --- |" * len(methods)
    for difficulties, problems, k in CELLS:
        right = draw_right(rng, difficulties, repetitions, problems, k)
        cells = []
        for method in methods.values():
            low, high = method(right, k)
            percent = coverage(low, high, truth(difficulties))
            width = np.mean(np.minimum(high, 1) - np.maximum(low, 0))
            cells.append(f"{percent:.1f}{'' if 93 <= percent <= 97 else '!'} ({width:.3f})")
        yield f"| {difficulties} | {problems} | {k} | {' | '.join(cells)} |"


if __name__ == "__main__":
    before, _, after = PAGE.read_text().partition(HEADING)
    rest = after.partition("\n\n")[2]
    PAGE.write_text(before + "\n".join(rows(10_000, 400)) + "\n\n" + rest)
