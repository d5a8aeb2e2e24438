"""Simulated evaluations. R repetitions, P problems, K responses to each."""

from __future__ import annotations

import itertools

import numpy as np

# The probability of a right response is drawn for each problem from Beta(a, b).
DIFFICULTIES = {
    "most all or nothing, Beta(0.3, 0.3)": (0.3, 0.3),
    "hard, Beta(0.2, 1.8)": (0.2, 1.8),
    "uniform, Beta(1, 1)": (1.0, 1.0),
    "easy, Beta(9.7, 0.3)": (9.7, 0.3),
}
PROBLEMS, RESPONSES = (30, 100, 500), (1, 4, 32)
CELLS = list(itertools.product(DIFFICULTIES, PROBLEMS, RESPONSES))


def draw_right(rng, difficulties: str, repetitions: int, problems: int, k: int):
    """Return how many of k responses to each problem are right."""
    return rng.binomial(k, rng.beta(*DIFFICULTIES[difficulties], (repetitions, problems)))


def truth(difficulties: str) -> float:
    a, b = DIFFICULTIES[difficulties]
    return a / (a + b)


def coverage(low_R, high_R, true: float) -> float:
    """Return the share of the intervals that hold the true value, in percent."""
    return 100 * float(np.mean((low_R <= true) & (true <= high_R)))
