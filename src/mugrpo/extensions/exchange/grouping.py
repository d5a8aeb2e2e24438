"""Imported rollouts in groups of one size, without rows that are there twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem, Rollout, Score
from mugrpo.extensions.exchange.foreign import Row


@dataclass(frozen=True)
class Imported:
    """A row as a run has it."""

    problem: Problem  # the same object for all rows with it
    row: Row
    rollout: Rollout  # with logprobs of 0 if a policy is to compute them
    score: Score


Group = list[Imported]  # the responses to one draw of a problem


def grouped(
    imported: Sequence[Imported], duplicates: str, size: int | None
) -> tuple[list[Group], list[str]]:
    """Return groups, in the order of their first rows, and a sentence for each row left out.

    Rows with the same problem, and the same draw if the file tells draws apart, are a group. With a
    `size`, they are cut into groups of it, and the rest is left out. A problem with several groups
    becomes several problems with ids of their own. Raises UsageError for rows that are there twice,
    unless `duplicates` is "drop" or "keep", for a sample with two responses, and for groups of
    unequal or too small size.
    """
    if size is not None and size < 2:
        raise UsageError(f"--group-size {size}: a group is two or more responses; raise it")
    by_draw: dict[Hashable, Group] = {}
    for one in imported:
        by_draw.setdefault((id(one.problem), one.row.group), []).append(one)
    for group in by_draw.values():
        _require_one_response(group)
    groups, repeated = list(by_draw.values()), list[Imported]()
    if duplicates != "keep":
        groups, repeated = _distinct(by_draw)
    if repeated and duplicates == "refuse":
        raise UsageError(
            f"{len(repeated)} rows repeat others (the first: {repeated[0].row.place}); leave them "
            "out with --duplicates drop, or keep them with --duplicates keep if they are different "
            "samples that came out the same"
        )
    left_out = [f"{one.row.place} repeats another row" for one in repeated]
    if size is None:
        _require_equal(groups)
    else:
        cut = [g[n : n + size] for g in groups for n in range(0, len(g) - size + 1, size)]
        rest = [one for group in groups for one in group[len(group) // size * size :]]
        left_out += [f"{one.row.place} is left over from groups of {size}" for one in rest]
        groups = cut
    return _numbered(groups), left_out


def _require_one_response(group: Group) -> None:
    first: dict[str, Row] = {}
    for row in (one.row for one in group if one.row.sample is not None):
        other = first.setdefault(str(row.sample), row)
        if other.content != row.content:
            raise UsageError(
                f"{row.place} and {other.place} are both sample {row.sample} of one group, but "
                "differ; import the rollouts of one run at a time"
            )


def _distinct(by_draw: Mapping[Hashable, Group]) -> tuple[list[Group], list[Imported]]:
    """Return the groups without repeated rows, and those rows.

    Rows of a numbered sample, or of draws that nothing tells apart, are repeated if they are equal.
    Rows of a draw that has a name may be equal by chance, so only all of its rows together are.
    """
    seen: set[Hashable] = set()
    groups, repeated = list[Group](), list[Imported]()
    for draw, group in by_draw.items():
        rows = [one.row for one in group]
        if rows[0].group and rows[0].sample is None:
            whole = id(group[0].problem), tuple(row.content for row in rows)
            parts: list[tuple[Hashable, Group]] = [(whole, group)]
        else:
            keys = [(draw, row.sample, row.content) for row in rows]
            parts = [(key, [one]) for key, one in zip(keys, group, strict=True)]
        kept: Group = []
        for key, part in parts:
            (repeated if key in seen else kept).extend(part)
            seen.add(key)
        if kept:
            groups.append(kept)
    return groups, repeated


def _require_equal(groups: Sequence[Group]) -> None:
    sizes = Counter(map(len, groups))
    if len(sizes) > 1 or 1 in sizes:
        smallest = next(group for group in groups if len(group) == min(sizes))
        counts = ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items()))
        raise UsageError(
            f"the rollouts are groups of unequal or too small size ({counts}; the first of "
            f"{len(smallest)}: {smallest[0].row.place}), and a group is two or more responses to "
            "one prompt; cut them into groups of N, and leave out the rest, with --group-size N"
        )


def _numbered(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with their samples numbered, each with a problem of its own."""
    taken: set[str] = set()
    numbered = []
    for group in groups:
        problem, number = group[0].problem, 0
        while (identity := f"{problem.id}#{number}" if number else problem.id) in taken:
            number += 1
        taken.add(identity)
        own = problem if identity == problem.id else replace(problem, id=identity)
        numbered.append(
            [
                replace(
                    one,
                    problem=own,
                    rollout=replace(one.rollout, problem_id=identity, sample=sample),
                )
                for sample, one in enumerate(group)
            ]
        )
    return numbered


def meant(found: Sequence[Problem], row: Row) -> Problem:
    """Return the one of the problems with a row's prompt that has its problem_id or answer."""
    meant = found
    if len(found) > 1:
        meant = [p for p in found if p.id == row.problem_id] or [
            p for p in found if p.answer == row.answer
        ]
    if len(meant) != 1:
        raise UsageError(
            f"{row.place}: its prompt is that of {len(found)} problems in task.data, and neither "
            "its problem_id nor its answer tells which one it is"
        )
    return meant[0]
