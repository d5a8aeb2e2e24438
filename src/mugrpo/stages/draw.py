"""Draw a stage's problems by difficulty: from the scores of earlier stages, seed and config.

The draw is published before the stage's first shard and never changes: `stages/000/draw` has the
solve rate of each problem as it was known then, and whether the stage passes the problem over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mugrpo.config.stages import RatedProblems
from mugrpo.disk.records import Status
from mugrpo.disk.shards import DRAW_SCHEMA, read_statuses
from mugrpo.rollouts.difficulty import Bools, Floats, passed_over, stated_rates, with_measured
from mugrpo.rollouts.score import scored
from mugrpo.run.opened import OpenRun
from mugrpo.stages.stage import Stage


def draw_stage(run: OpenRun, stage: Stage) -> None:
    """Publish the stage's draw, if problems are chosen by difficulty and it has none.

    A source with fewer problems left than an update needs is drawn from in full.
    """
    options, shards = run.config.difficulty, stage.shards("draw")
    if not isinstance(options, RatedProblems) or 0 in shards:
        return
    rates_P, recent_P = _known(run, stage, options)
    excluded_P = passed_over(options, rates_P, recent_P, seed=run.config.seed, stage=stage.number)
    sizes = [source.problems for source in stage.schedule.parts]
    ends = pairwise(np.cumsum([0, *sizes]))
    for (start, end), needed in zip(ends, stage.schedule.largest_hands(stage.number), strict=True):
        left = int((~excluded_P[start:end]).sum())
        if left < needed:
            excluded_P[start:end] = False
            run.progress.say(
                f"stage {stage.number}: difficulty leaves {left} of {end - start} problems, fewer "
                f"than the {needed} that an update needs; all of them are drawn"
            )
    out = set(np.flatnonzero(excluded_P).tolist())
    own = islice(stage.schedule.stream(stage.number, out), stage.groups)
    drawn = [rate for index, _ in own if not np.isnan(rate := rates_P[index])]
    table = pa.Table.from_pydict(
        {"rate": [None if np.isnan(r) else r for r in rates_P], "excluded": excluded_P},
        schema=DRAW_SCHEMA,
    )
    mean = sum(drawn) / len(drawn) if drawn else None
    shards.write(0, table, problems_excluded=len(out), drawn_solve_rate=mean)


def draw_metrics(stage: Stage) -> dict[str, Any]:
    """Return how many problems the stage passed over, and the mean solve rate of those it drew.

    The mean is over its groups whose problem had a known rate. Return {} without a draw.
    """
    if not isinstance(stage.config.difficulty, RatedProblems) or 0 not in stage.shards("draw"):
        return {}
    entry = stage.shards("draw").entry(0)
    return {name: entry[name] for name in ("problems_excluded", "drawn_solve_rate")}


def _known(run: OpenRun, stage: Stage, options: RatedProblems) -> tuple[Floats, Bools]:
    """Return each problem's solve rate, or NaN, and whether it was drawn too recently, [P]."""
    rates_P = stated_rates(run.problems, options.column)
    recent_P: NDArray[np.bool_] = np.zeros(len(run.problems), np.bool_)
    places = {problem.id: index for index, problem in enumerate(run.problems)}
    remembered = stage.number if options.memory is None else options.memory
    for number in range(stage.number):
        measured: dict[int, list[bool]] = defaultdict(list)
        for problem, right in _responses(Stage.of(run, number, stage.schedule)):
            if (index := places.get(problem)) is not None:
                measured[index] += right
        if stage.number - number <= remembered:
            rates_P = with_measured(rates_P, measured)
        if stage.number - number <= options.spacing:
            recent_P[list(measured)] = True
    return rates_P, recent_P


def _responses(stage: Stage) -> Iterator[tuple[str, list[bool]]]:
    """Yield (problem, [whether it is right]) for each scored response; [] if it does not count."""
    rollouts, scores = stage.shards("rollouts"), stage.shards("scores")
    counts = stage.config.rewards.counts
    for shard in rollouts.numbers():
        if scored(rollouts, scores, shard):
            problems = rollouts.open(shard).read(["problem_id"])["problem_id"].to_pylist()
            for problem, status in zip(problems, read_statuses(scores, shard), strict=True):
                yield problem, [status is Status.RIGHT] if counts(status) else []
