"""A run's result in a few lines, from its metrics file alone."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from typing import Any

from mugrpo.disk.metrics import PHASES, seconds_of
from mugrpo.disk.run_dir import RunDir
from mugrpo.report.read import GRPO_UPDATES_PER_REFRESH, accuracy_text, number, refresh_parts
from mugrpo.rollouts.statistics import truncation
from mugrpo.run.progress import clock

LEARNED_NOTHING = 4  # exit status of `mugrpo train`
_STANDSTILL = 0.25  # share of updates without effect from which a run is said to learn nothing
_FEW = 16  # updates; the rewards of a few batches may be equal by chance
_SOLVED = 0.05  # the share by which the reward of a solved task may vary from stage to stage


def summarize(lines: list[dict[str, Any]], preset: str | None = None) -> str:
    """Return lines of text: accuracy before and after, time by phase, refreshes against GRPO's.

    The refreshes of a run of the preset "grpo" are compared with nothing.
    """

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
        text.append(
            f"accuracy    {accuracy_text(first)} before, {accuracy_text(last)} after update "
            f"{last['update']} ({number(last, 'problems') or 0:.0f} held-out problems{sure})"
        )
    text.append(
        "time        "
        + "  ".join(f"{phase} {clock(spent)}" for phase, spent in phases.items())
        + f"  training (without evaluation) {clock(sum(phases.values()) - phases['evaluate'])}"
    )
    grpo = math.ceil(len(updates) / GRPO_UPDATES_PER_REFRESH)
    of_grpo = f"; GRPO with mu={GRPO_UPDATES_PER_REFRESH} would have made {grpo}"
    text.append(f"refreshes   {refreshes} made{'' if preset == 'grpo' else of_grpo}")
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


def whereabouts(folder: RunDir, update: int) -> str:
    """Return lines of text: the checkpoint after `update`, and the command that draws the run."""
    report = shlex.join(["mugrpo", "report", str(folder.root)])
    return f"checkpoint  {folder.checkpoint(update)}\nreport      {report}"


def standstill(lines: Iterable[dict[str, Any]], longest: int) -> str | None:
    """Return a sentence if the run, or stages with a quarter of its updates, learned nothing.

    An update learns nothing if its gradient is 0 or was not applied. A stage of such updates is
    fine if no other one had a clearly higher reward: then the task is solved. Fewer than 16 updates
    of a run that learned say nothing. Responses have at most `longest` tokens.
    """
    stages: dict[int, list[dict[str, Any]]] = {}
    cut: dict[int, str | None] = {}
    for line in lines:
        if line["kind"] == "refresh" and line.get("rollouts"):
            cut[int(number(line, "stage") or 0)] = truncation(line, longest)
        if line["kind"] == "update":
            stages.setdefault(int(number(line, "stage") or 0), []).append(line)
    rewards = {stage: _reward(of) for stage, of in stages.items()}
    idle = [stage for stage, of in stages.items() if not any(map(_learned, of))]
    enough = 1
    if len(idle) < len(stages):
        best, total = max(rewards.values()), sum(map(len, stages.values()))
        idle = [stage for stage in idle if rewards[stage] < best - _SOLVED * abs(best)]
        enough = max(_FEW, math.ceil(_STANDSTILL * total))
    updates = [line for stage in idle for line in stages[stage]]
    if len(updates) < enough:
        return None
    skipped = sum(number(line, "skipped") or 0 for line in updates)
    reward = _reward(updates)
    usual = (
        "If all responses to a problem get the same reward, there is nothing to learn from: look "
        "at the samples, the rewards, and how hard the problems are"
    )
    return (
        f"nothing was learned in stage{'s' * (len(idle) > 1)} {', '.join(map(str, idle))}: "
        f"{skipped:.0f} of {len(updates)} updates were not applied, and the others had no gradient "
        f"(mean reward {reward:.3f}). {next(filter(None, map(cut.get, idle)), usual)}"
    )


def _learned(update: dict[str, Any]) -> bool:
    return not number(update, "skipped") and number(update, "grad_norm") != 0


def _reward(updates: Iterable[dict[str, Any]]) -> float:
    """Return the mean reward of the updates' batches, of those that have one."""
    known = [reward for line in updates if (reward := number(line, "batch_reward")) is not None]
    return sum(known) / len(known) if known else 0.0
