"""Which problems a stage passes over, from the solve rates that are known. P problems."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from mugrpo.config.options import at_stage
from mugrpo.config.stages import DifficultyBand, RatedProblems
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem
from mugrpo.tasks.cells import entry

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def passed_over(
    options: RatedProblems, rates_P: Floats, recent_P: Bools, *, seed: int, stage: int
) -> Bools:
    """Return whether `stage` leaves each problem out, [P].

    `rates_P` is NaN where a solve rate is not known. `recent_P` is true for problems that must not
    repeat yet. The chance of a problem under "half" depends on `seed`, `stage` and its index alone.
    """
    assert rates_P.shape == recent_P.shape and rates_P.ndim == 1
    if isinstance(options, DifficultyBand):
        low, high = at_stage(options.low, stage), at_stage(options.high, stage)
        wrong_P = (rates_P < low) | (rates_P > high)  # false for NaN
    else:
        chance_P = np.random.default_rng((seed, stage, 0, 1)).random(len(rates_P))
        wrong_P = chance_P >= 4 * rates_P * (1 - rates_P)
    return np.asarray(wrong_P | recent_P, np.bool_)


def stated_rates(problems: Sequence[Problem], column: str | None) -> Floats:
    """Return each problem's solve rate in a column of the data, [P]; NaN if it has none.

    Raises UsageError if no problem has the column, or if a cell is not a number from 0 to 1.
    """
    rates_P = np.full(len(problems), math.nan)
    if column is None:
        return rates_P
    for index, problem in enumerate(problems):
        with suppress(KeyError):
            if (cell := entry(problem.columns, column)) is not None:
                rates_P[index] = _rate(cell, problem.id, column)
    if np.isnan(rates_P).all():
        raise UsageError(
            f"difficulty.column = {column!r}, but no problem has such a solve rate; name a column "
            "of the data"
        )
    return rates_P


def with_measured(rates_P: Floats, measured: Mapping[int, Sequence[bool]]) -> Floats:
    """Return `rates_P` with the share of right responses of each problem in `measured`, by index.

    Problems without any response that counts keep their rate.
    """
    updated_P = rates_P.copy()
    for index, right in measured.items():
        if right:
            updated_P[index] = sum(right) / len(right)
    return updated_P


def _rate(cell: object, problem: str, column: str) -> float:
    try:
        rate = float(cell)  # type: ignore[arg-type]  # CSV has text
    except (TypeError, ValueError):
        rate = math.nan
    if not 0 <= rate <= 1:
        raise UsageError(
            f"column {column!r} of problem {problem!r} is {cell!r:.60}, not a solve rate from 0 "
            "to 1; fix the data, or name another difficulty.column"
        )
    return rate
