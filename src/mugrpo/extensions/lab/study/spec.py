"""A study's file: a base config, axes of options, seeds, and what to show of the results.

    title = "Relaxed clipping"
    question = "Does a wide ratio interval learn faster from stale rollouts?"
    base = "mine.toml"
    seeds = [0, 1, 2, 3, 4]

    [axes.interval]
    narrow = { objective.ratio_clip = [0.8, 1.2] }
    wide = { objective.ratio_clip = [0, 5] }

A cell is a value of every axis and a seed. Its options are those of the base, overridden by the
study's `set`, then by the options of its values and those of `where`, as on the command line.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from mugrpo.config.base import Options
from mugrpo.config.load import (
    as_override,
    build_config,
    lay_over,
    leaves,
    read_toml,
    validated,
)
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.metrics import PHASES

# The columns of a study's table: names, and patterns of those that depend on the run.
_COLUMNS = (
    *("accuracy", "best", "greedy", "entropy", "mean", "worst_fall", "training_seconds"),
    "truncated_share",
    *("updates", "stages", "rollouts", "skipped", "kl_behavior", "tv_token"),
    *("ratio/negative/mean", "ratio/negative/max", "seed", "threads"),
    *("alignment", "alignment/positive", "alignment/negative", "alignment/fresh"),
    *(f"seconds/{phase}" for phase in PHASES),
)
_PATTERNS = (
    r"start/(accuracy|greedy|entropy|truncated_share)|(start/)?(pass@\d+|accuracy/\w+)"
    r"|\w+_fraction|seconds/refresh/\w+|\w+_to_\d+(\.\d+)?"
)


class Figure(Options):
    """A picture of the study."""

    name: str
    """The file's name, without its ending."""
    title: str
    """What the picture shows."""
    kind: Literal["curves", "values", "time", "speedup"]
    """A quantity over a run; one number per cell; where an arm's seconds go; how many times as fast
    arms are as the first baseline, by the seconds that a refresh costs."""
    of: str = "accuracy"
    """The quantity: a number of each evaluation for curves, of each cell for values."""
    against: Literal["updates", "seconds"] = "updates"
    """What the curves are drawn against: updates, or seconds of training."""
    lines: str | None = None
    """The axis with a line for each value; in a picture of values, with a color for each."""
    arms: tuple[str, ...] = ()
    """The values of the axis `lines` that are shown, but in a picture of values; all if empty."""
    seeds: tuple[int, ...] = ()
    """The seeds that are shown, such as those whose seconds nothing disturbed; all if empty."""
    names: dict[str, str] = Field(default_factory=dict)
    """What lines are called at their ends, if not as the axis `lines` calls them."""
    width: int = 400
    """Pixels, without the names of lines."""
    panels: str | None = None
    """The axis with a panel for each value."""
    log: bool = False
    """Whether the quantity's axis is logarithmic."""


class Where(Options):
    """Options of the cells that have these values on their axes."""

    values: dict[str, str] = Field(min_length=1)
    """Axis -> value."""
    set: dict[str, Any]
    """Their options. They override those of the values."""


Baseline = dict[str, str]


def _several(value: Any) -> Any:
    return (value,) if isinstance(value, dict) else value


class Study(Options):
    """The contents of a study's file."""

    title: str
    """The study's name for readers."""
    question: str
    """The question that the study asks."""
    base: str
    """The config file that all cells start from."""
    seeds: tuple[int, ...] = Field(min_length=1)
    """The seeds of each arm's runs. An interval needs at least two."""
    threads: int = Field(1, ge=1)
    """CPU threads of each run. As many runs go on at once as the cores allow."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Options of all cells. They override those of the base."""
    axes: dict[str, Annotated[dict[str, dict[str, Any]], Field(min_length=1)]] = Field(min_length=1)
    """Axis -> value -> its options."""
    where: tuple[Where, ...] = ()
    """Options of some combinations of values, such as a rate for each method and schedule."""
    columns: tuple[str, ...] = ("accuracy", "best", "training_seconds")
    """The table's columns: those of the results, or such as updates_to_0.9 or seconds_to_0.9."""
    baseline: Annotated[tuple[Baseline, ...], BeforeValidator(_several)] = ()
    """Axis -> the value that the others are compared with, seed by seed; several of these, if the
    page has several comparisons."""
    equivalence: float | None = Field(None, gt=0)
    """Test whether each arm's accuracy is within this of the baseline's (two one-sided tests)."""
    figures: tuple[Figure, ...] = ()
    """The study's pictures."""
    setting: str = ""
    """What a reader needs to know about the runs to understand the table."""
    findings: str = ""
    """The result, whether the claim holds here, and what would change our mind."""


@dataclass(frozen=True)
class Cell:
    """One run of the study."""

    values: dict[str, str]  # axis -> value
    seed: int
    config: RunConfig
    overrides: tuple[str, ...]  # of the base config, as on the command line
    threads: int = 1  # of its run

    @property
    def name(self) -> str:
        """Return the path of the cell's folder."""
        return "/".join([*map(_slug, self.values.values()), f"seed-{self.seed}"])

    def __str__(self) -> str:
        return ", ".join([*self.values.values(), f"seed {self.seed}"])


def load_study(file: Path) -> tuple[Study, list[Cell]]:
    """Return the study in `file` and its cells, grouped by seed.

    Raises UsageError if the file is not a valid study, or if a cell's options are not valid.
    """
    study = validated(Study, read_toml(file), str(file))
    faults = (_faults, _figure_faults, _unknown_values, _column_faults)
    for fault in (fault for of in faults for fault in of(study)):
        raise UsageError(f"{file}: {fault}")
    return study, list(_cells(study, file))


def arms(study: Study) -> list[dict[str, str]]:
    """Return every combination of the axes' values; the first axis varies slowest."""
    return [dict(zip(study.axes, labels, strict=True)) for labels in product(*study.axes.values())]


def _cells(study: Study, file: Path) -> Iterator[Cell]:
    base = read_toml(Path(study.base))
    for seed in study.seeds:
        for values in arms(study):
            chosen = [study.axes[axis][label] for axis, label in values.items()]
            chosen += [one.set for one in study.where if one.values.items() <= values.items()]
            pairs = [pair for options in (study.set, *chosen) for pair in leaves(options)]
            pairs = [*dict(pairs).items(), ("seed", seed)]  # the last value of an option counts
            source = f"{file}, {', '.join(values.values())}"
            config = build_config(lay_over(base, pairs), source)
            overrides = tuple(as_override(name, value) for name, value in pairs)
            yield Cell(values, seed, config, overrides, study.threads)


def _faults(study: Study) -> Iterator[str]:
    """Yield what is wrong with names and seeds."""
    if len(set(study.seeds)) < len(study.seeds):
        yield f"seeds {list(study.seeds)} contain a duplicate"
    for axis, values in study.axes.items():
        slugs = [_slug(label) for label in values]
        for label, slug in zip(values, slugs, strict=True):
            if not slug or slugs.count(slug) > 1:
                yield (
                    f"axes.{axis} has a value {label!r} whose folder name, {slug!r}, is empty or "
                    "that of another value; rename it"
                )


def _figure_faults(study: Study) -> Iterator[str]:
    """Yield a sentence for each figure that cannot be drawn."""
    for figure in study.figures:
        for named in (figure.lines, figure.panels):
            if named is not None and named not in study.axes:
                yield f"figure {figure.name}: there is no axis {named!r}"
        for label in figure.arms:
            if label not in study.axes.get(figure.lines or "", {}):
                yield f"figure {figure.name}: {label!r} is not a value of the axis of its lines"
        for seed in set(figure.seeds) - set(study.seeds):
            yield f"figure {figure.name}: {seed} is not a seed of the study"
        if figure.kind == "speedup" and not (study.baseline and [*study.axes] == [figure.lines]):
            yield f"figure {figure.name}: a speedup needs a baseline, and its lines the only axis"


def _unknown_values(study: Study) -> Iterator[str]:
    """Yield a sentence for each value of a baseline or of `where` that no axis has."""
    named = [("baseline", one) for one in study.baseline]
    for what, values in [*named, *(("where.values", one.values) for one in study.where)]:
        for axis, label in values.items():
            if label not in study.axes.get(axis, {}):
                yield f"{what}.{axis} = {label!r} is not a value of that axis"


def _column_faults(study: Study) -> Iterator[str]:
    """Yield a sentence for each name that is no column of the results."""
    named = [*study.columns]
    named += [figure.of for figure in study.figures if figure.kind == "values"]
    for column in named:
        if column not in _COLUMNS and not re.fullmatch(_PATTERNS, column):
            near = difflib.get_close_matches(column, _COLUMNS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose among {', '.join(_COLUMNS)}"
            yield f"there is no column {column!r}; {hint}"


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9.+-]+", "-", label.lower()).strip("-.")
