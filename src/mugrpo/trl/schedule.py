"""TRL's batch arithmetic, and the stages that have the same updates and refreshes.

TRL generates `per_device_train_batch_size` x processes x `steps_per_generation` rollouts at a time,
that is, this / `num_generations` prompts. It makes `steps_per_generation` /
`gradient_accumulation_steps` x `num_iterations` updates on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count
from typing import Any

from mugrpo.config.preset import PRESETS
from mugrpo.config.stages import ScheduleOptions
from mugrpo.disk.errors import UsageError


@dataclass(frozen=True)
class Generation:
    """What TRL generates at a time, and the updates on it."""

    rollouts: int
    prompts: int
    batches: int  # one for each update of a pass
    passes: int
    problems_per_update: int
    generations_per_update: int  # 1, or more if gradients are accumulated over several

    @property
    def updates(self) -> int:
        """Return the updates between two refreshes."""
        return self.batches * self.passes


def generation_of(args: Any) -> Generation:
    """Return the arithmetic of `args`. Processes are an option here, `distributed.processes`.

    Raises UsageError as TRL does, and if an update would not hold whole groups or whole batches.
    """
    group, accumulated = args.num_generations, args.gradient_accumulation_steps
    processes = (args.options or {}).get("distributed.processes", 1)
    micro = args.per_device_train_batch_size * processes
    steps = args.steps_per_generation or accumulated
    if args.generation_batch_size is not None:
        if args.steps_per_generation is not None:
            raise UsageError("set generation_batch_size or steps_per_generation, not both")
        if args.generation_batch_size % micro:
            raise UsageError(
                f"generation_batch_size = {args.generation_batch_size} must be a multiple of "
                f"per_device_train_batch_size x processes = {micro}"
            )
        steps = args.generation_batch_size // micro
    rollouts, per_update = micro * steps, micro * accumulated
    if group < 2:
        raise UsageError(f"num_generations = {group}: a group needs at least 2 responses")
    if rollouts % group:
        raise UsageError(
            f"a generation of {rollouts} rollouts (per_device_train_batch_size x processes x "
            f"steps_per_generation) is no multiple of num_generations = {group}"
        )
    if per_update % group:
        raise UsageError(
            f"an update of {per_update} rollouts (per_device_train_batch_size x processes x "
            f"gradient_accumulation_steps) is no multiple of num_generations = {group}, and an "
            "update holds whole groups here; "
            f"gradient_accumulation_steps = {group // math.gcd(group, micro)} would do"
        )
    whole, several = steps % accumulated == 0, accumulated % steps == 0
    if not whole and not (several and args.num_iterations == 1):
        raise UsageError(
            f"steps_per_generation = {steps} is no multiple of gradient_accumulation_steps = "
            f"{accumulated}, so an update would mix parts of generations; make it one"
        )
    return Generation(
        rollouts,
        rollouts // group,
        batches=max(1, steps // accumulated),
        passes=args.num_iterations,
        problems_per_update=per_update // group,
        generations_per_update=max(1, accumulated // steps),
    )


def updates_of(args: Any, one: Generation, rows: int | None) -> tuple[int, int]:
    """Return TRL's updates of the run on a data set of `rows` prompts, and those of an epoch.

    An epoch leaves out the prompts that do not fill a generation. Raises UsageError if the updates
    need the rows but these are not known (None), or are fewer than a generation takes.
    """
    if rows is None:
        if args.max_steps <= 0:
            raise UsageError("num_train_epochs needs a data set with a length; set max_steps")
        return args.max_steps, args.max_steps
    generations = rows // one.prompts
    if not generations:
        raise UsageError(
            f"the data set has {rows} prompts, but a generation takes {one.prompts}; lower "
            "steps_per_generation or per_device_train_batch_size"
        )
    epoch = math.ceil(generations * one.updates / one.generations_per_update)
    if args.max_steps > 0:
        return args.max_steps, epoch
    return math.ceil(args.num_train_epochs * epoch), epoch


def schedule_options(args: Any, one: Generation, updates: int) -> dict[str, Any]:
    """Return `[schedule]` for that many updates, with TRL's refreshes or the stages of `args`.

    Raises UsageError, which names the nearest possible numbers, if stages cannot be cut like that.
    """
    sized: dict[str, Any] = {
        "problems_per_update": one.problems_per_update,
        "group_size": args.num_generations,
        "passes_per_batch": one.passes,
        **({"pass_order": "stage"} if one.passes > 1 else {}),
    }
    if args.method is None and args.stages is None:
        if updates % one.updates:
            below = updates - updates % one.updates
            _refuse(f"{updates} updates end within a generation", below, below + one.updates)
        return {"stages": updates // one.updates, "batches_per_stage": one.batches, **sized}
    growth = PRESETS.get(args.method or "", {}).get("schedule", {}).get("growth", 1.0)
    stages = args.stages or ScheduleOptions.model_fields["stages"].default
    below = 0
    for batches in count(1):
        shape = {"stages": stages, "batches_per_stage": batches, "growth": growth, **sized}
        total = ScheduleOptions.model_validate(shape).total_updates
        if total == updates:
            return shape
        if total > updates:
            _refuse(f"{updates} updates cannot be cut into {stages} such stages", below, total)
        below = total
    raise AssertionError


def _refuse(sentence: str, *possible: int) -> None:
    numbers = " or ".join(str(updates) for updates in possible if updates)
    raise UsageError(f"{sentence}; set max_steps = {numbers}")
