"""A run's result in a few lines, from its metrics file alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from mugrpo.disk.metrics import PHASES, seconds_of, truncation
from mugrpo.report.read import (
    accuracy_text,
    number,
    refresh_parts,
)
from mugrpo.report.readable import duration

LEARNED_NOTHING = 4  # exit status of `mugrpo train`
_MU = 4  # updates per refresh of the GRPO that the Mu-GRPO paper compares with


def summarize(lines: list[dict[str, Any]]) -> str:
    """Return lines of text: accuracy before and after, time by phase, refreshes against GRPO's."""
    # Of lines about the same thing the last one counts (`score --again`).
    lines = list({(line["kind"], line["update"]): line for line in lines}.values())

    def of(kind: str) -> list[dict[str, Any]]:
        matching = [line for line in lines if line["kind"] == kind]
        return sorted(matching, key=lambda line: line["update"])

    updates, evaluations = of("update"), of("evaluation")
    refreshes = len(of("refresh"))
    phases = {phase: sum(seconds_of(line, phase) for line in lines) for phase in PHASES}
    text = [f"{len(updates)} updates"]
    if evaluations:
        first, last = evaluations[0], evaluations[-1]
        sure = "; 95 % intervals" if number(last, "accuracy_low") is not None else ""
        both = first["update"] == 0 < last["update"]
        before = f"{accuracy_text(first)} before, " if both else ""
        text.append(
            f"accuracy    {before}{accuracy_text(last)} after update "
            f"{last['update']} ({number(last, 'problems') or 0:.0f} held-out problems{sure})"
        )
        greedy = [number(line, "greedy/accuracy") for line in (first, last)]
        if both and greedy[0] is not None and greedy[1] is not None:
            text.append(f"greedy      {greedy[0]:.3f} before, {greedy[1]:.3f} after")
    text.append(
        "time        "
        + "  ".join(f"{phase} {duration(spent)}" for phase, spent in phases.items())
        + f"  training (without evaluation) {duration(sum(phases.values()) - phases['evaluate'])}"
    )
    grpo = -(-len(updates) // _MU)
    of_grpo = f"; GRPO with one every {_MU} updates makes {grpo}" if grpo > refreshes else ""
    text.append(f"refreshes   {refreshes} made{of_grpo}")
    parts = refresh_parts(of("refresh"))
    if len(parts) > 1:  # an engine in the trainer's process has nothing but the canary
        each = "  ".join(f"{part} {spent:.1f} s" for part, spent in parts.items())
        text.append(f"            their seconds: {each}")
    skipped = sum(number(line, "skipped") or 0 for line in updates)
    if skipped:
        text.append(f"skipped     {skipped:.0f} updates with a non-finite loss or gradient")
    lowered = [tokens for line in updates if (tokens := number(line, "micro_batch_tokens"))]
    if lowered:
        text.append(
            f"memory      {len(lowered)} updates with micro_batch_tokens lowered, down to "
            f"{min(lowered):.0f}"
        )
    return "\n".join(text)


def measured(result: dict[str, Any], update: int) -> str:
    """Return an evaluation's numbers as text: accuracy, reward, pass@k, statuses."""
    held_out = f"{number(result, 'problems') or 0:.0f} held-out problems"
    shown = [f"accuracy    {accuracy_text(result)} after update {update} ({held_out})"]
    for key in (k for k in result if re.fullmatch(r"reward|pass@\d+|greedy/accuracy", k)):
        shown.append(f"{key.removesuffix('/accuracy'):<12}{result[key]:.3f}")
    counts = {k.removeprefix("status/"): v for k, v in result.items() if k.startswith("status/")}
    shown.append("responses   " + ", ".join(f"{v} {k}" for k, v in counts.items() if v))
    return "\n".join(shown)


def standstill(lines: Iterable[dict[str, Any]], longest: int) -> str | None:
    """Return a sentence if the run learned nothing: no update had a gradient that was applied.

    Responses have at most `longest` tokens.
    """
    listed = list(lines)
    updates = [line for line in listed if line["kind"] == "update"]
    skipped = sum(bool(number(line, "skipped")) for line in updates)
    if not updates or any(
        not number(u, "skipped") and number(u, "grad_norm") != 0 for u in updates
    ):
        return None
    refreshes = [line for line in listed if line["kind"] == "refresh" and line.get("rollouts")]
    cut = (truncation(line, longest) for line in refreshes)
    usual = (
        "If all responses to a problem get the same reward, there is nothing to learn from: look "
        "at the samples, the rewards, and how hard the problems are"
    )
    return (
        f"nothing was learned: {skipped} of {len(updates)} updates were not applied, and the "
        f"others had no gradient. {next(filter(None, cut), usual)}"
    )
