"""A run's result in a few lines, from its metrics file alone."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from mugrpo.disk.metrics import (
    EVALUATION,
    PHASES,
    UPDATE,
    Line,
    number,
    seconds_of,
    truncation,
)
from mugrpo.report.read import refresh_parts
from mugrpo.report.readable import duration
from mugrpo.rollouts.evaluation import headline, value_text

LEARNED_NOTHING = 4  # exit status of `mugrpo train`
_MEASURED = r"reward|pass@\d+|greedy/accuracy|rewards/.*/mean"
_MU = 4  # updates per refresh of the GRPO that the Mu-GRPO paper compares with


def summarize(lines: Iterable[Line]) -> str:
    """Return lines of text: accuracy before and after, time by phase, refreshes against GRPO's.

    `lines` are those that count, in any order. They are not held.
    """
    phases, parts, made = dict.fromkeys(PHASES, 0.0), Counter[str](), Counter[str]()
    first: Line = {}
    last: Line = {}
    skipped, lowered = 0.0, list[float]()  # the lowest budget so far
    for line in lines:
        made[line["kind"]] += 1
        for phase in phases:
            phases[phase] += seconds_of(line, phase)
        if line["kind"] == "refresh":
            parts.update(refresh_parts([line]))
        elif line["kind"] == EVALUATION:
            first = line if not first or line["update"] < first["update"] else first
            last = line if not last or line["update"] > last["update"] else last
        elif line["kind"] == UPDATE:
            skipped += number(line, "skipped") or 0
            if budget := number(line, "micro_batch_tokens"):
                made["lowered"] += 1
                lowered = [min([budget, *lowered])]
    text = [f"{made[UPDATE]} updates", *_accuracies(first, last)]
    text.append(
        "time        "
        + "  ".join(f"{phase} {duration(spent)}" for phase, spent in phases.items())
        + f"  training (without evaluation) {duration(sum(phases.values()) - phases['evaluate'])}"
    )
    grpo, refreshes = -(-made[UPDATE] // _MU), made["refresh"]
    of_grpo = f"; GRPO with one every {_MU} updates makes {grpo}" if grpo > refreshes else ""
    text.append(f"refreshes   {refreshes} made{of_grpo}")
    if parts.keys() - {"trial", "canary"}:  # an engine in the trainer's process has no others
        each = "  ".join(f"{part} {spent:.1f} s" for part, spent in parts.items())
        text.append(f"            their seconds: {each}")
    if skipped:
        text.append(f"skipped     {skipped:.0f} updates with a non-finite loss or gradient")
    if lowered:
        text.append(
            f"memory      {made['lowered']} updates with micro_batch_tokens lowered, down to "
            f"{lowered[0]:.0f}"
        )
    return "\n".join(text)


def _accuracies(first: Line, last: Line) -> Iterator[str]:
    """Yield what the first and the last evaluation have measured, if there are any."""
    if not last:
        return
    name = headline(first, last)
    sure = "; 95 % intervals" if number(last, f"{name}_low") is not None else ""
    both = first["update"] == 0 < last["update"]
    before = f"{value_text(first, name)} before, " if both else ""
    yield (
        f"{name:<12}{before}{value_text(last, name)} after update "
        f"{last['update']} ({number(last, 'problems') or 0:.0f} held-out problems{sure})"
    )
    for key in (k for k in last if name == "reward" and re.fullmatch("rewards/.*/mean", k)):
        began, ended = number(first, key), number(last, key)
        before = f"{began:.3f} before, " if both and began is not None else ""
        if ended is not None:
            yield f"            {key[8:-5]}, where judged: {before}{ended:.3f} after"
    greedy = [number(line, "greedy/accuracy") for line in (first, last)]
    if both and greedy[0] is not None and greedy[1] is not None:
        yield f"greedy      {greedy[0]:.3f} before, {greedy[1]:.3f} after"


def measured(result: dict[str, Any], update: int) -> str:
    """Return an evaluation's numbers as text: accuracy, rewards, pass@k, statuses."""
    held_out = f"{number(result, 'problems') or 0:.0f} held-out problems"
    name = headline(result)
    shown = [f"{name:<12}{value_text(result, name)} after update {update} ({held_out})"]
    for key in result:
        value = number(result, key)
        if value is not None and key != name and re.fullmatch(_MEASURED, key):
            shown.append(f"{re.sub('^rewards/|/mean$|/accuracy$', '', key):<12}{value:.3f}")
    counts = {k.removeprefix("status/"): v for k, v in result.items() if k.startswith("status/")}
    shown.append("responses   " + ", ".join(f"{v} {k}" for k, v in counts.items() if v))
    return "\n".join(shown)


def standstill(lines: Iterable[Line], longest: int) -> str | None:
    """Return a sentence if the run learned nothing: no update had a gradient that was applied.

    Responses have at most `longest` tokens. The lines are not held.
    """
    updates = skipped = 0
    cut: str | None = None
    for line in lines:
        if line["kind"] == UPDATE:
            lost = bool(number(line, "skipped"))
            if not lost and number(line, "grad_norm") != 0:
                return None
            updates, skipped = updates + 1, skipped + lost
        elif line["kind"] == "refresh" and number(line, "rollouts"):
            cut = cut or truncation(line, longest)
    usual = (
        "If all responses to a problem get the same reward, there is nothing to learn from: look "
        "at the samples, the rewards, and how hard the problems are"
    )
    if not updates:
        return None
    some = f"{skipped} of {updates} updates were not applied, and the others had no gradient"
    why = some if skipped else f"none of the {updates} updates had a gradient"
    return f"nothing was learned: {why}. {cut or usual}"
