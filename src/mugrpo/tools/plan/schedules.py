"""Wall-clock by part, for a schedule and for each way to divide the devices into pools.

colocated    all devices generate, then all of them make the updates
separate     some generate, the others make updates, one after the other
overlapped   the same, but a stage's updates begin after its first shard (`overlap = true`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from mugrpo.disk.errors import UsageError
from mugrpo.tools.plan.generation import Generated, generate
from mugrpo.tools.plan.setting import Setting, with_updates

PARTS = ("refresh", "generate", "score", "logprobs", "optimize", "checkpoint", "evaluate")
POOLS = ("colocated", "separate", "overlapped")

_SAMPLES = 3  # updates that stand for all of a stage
_DRAWS, _GROUPS = 32, 1024  # draws of a small stage, which have as many groups together
_EIGHTHS = (1, 2, 3, 4, 5, 6, 7)  # of the devices, for generation
STATE = 12  # bytes of a checkpoint for each parameter: the weight and two moments
FULL_STATE = 16  # and its gradient


@dataclass(frozen=True)
class Planned:
    """What a schedule costs with one way to divide the devices."""

    stages: Sequence[int]  # updates of each
    pool: str
    generating: int  # devices
    updating: int  # devices
    parts: dict[str, float]  # seconds of each of PARTS
    seconds: float  # of the run: less than all parts together if they overlap
    tail: float  # of the seconds of generation, those in which slots fall idle

    @property
    def devices(self) -> int:
        return self.generating if self.pool == "colocated" else self.generating + self.updating


class Planner:
    """Plans for one setting. What schedules have in common is computed once."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        # Stages that begin with the same lengths, and have the same size, cost the same.
        self._of_stage = cache(self._generated)
        self._of_update = cache(self._updated)
        self._of_group = cache(self._logprobs)

    def compared(self, own: Sequence[int], schedules: Sequence[int]) -> list[Planned]:
        """Return the plans of the stages `own`, and of each number of updates after a refresh.

        Raises UsageError if the model fits nowhere, or a number is no whole number of batches.
        """
        several = [list(own)]
        for number in schedules:
            stages = with_updates(self.setting.config, number)
            several += [stages] if stages not in several else []
        return [plan for stages in several for plan in self.plans(stages)]

    def plans(self, stages: Sequence[int]) -> list[Planned]:
        """Return the fastest plan of each of POOLS. One device has no separate pools.

        Raises UsageError if the model fits nowhere.
        """
        self.require_fit()
        devices = self.setting.machine.devices
        plans = [self.planned(stages, "colocated", devices, devices)]
        least = self.setting.engines().tensor_parallel
        splits = sorted({max(least, devices * part // 8) for part in _EIGHTHS})
        splits = [split for split in splits if 0 < split < devices]
        for pool in POOLS[1:] if splits else ():
            several = [self.planned(stages, pool, n, devices - n) for n in splits]
            plans.append(min(several, key=lambda plan: plan.seconds))
        return plans

    def planned(self, stages: Sequence[int], pool: str, generating: int, updating: int) -> Planned:
        """Return the plan of stages with numbers of updates, and of devices for each half."""
        parts, tail, hidden, first = dict.fromkeys(PARTS, 0.0), 0.0, 0.0, 0
        for number, updates in enumerate(stages):
            made = self.generated(first, updates, generating, number)
            update = self.updated(first, updating)
            other = self._of_group(self._known(first), updating)
            groups = self.setting.groups(updates)
            optimize = updates * update
            parts["refresh"] += self._refresh()
            parts["generate"] += made.seconds
            parts["score"] += self._score(groups * self.setting.config.schedule.group_size)
            parts["logprobs"] += groups * other
            parts["optimize"] += optimize
            tail += made.tail
            if pool == "overlapped":
                # The first shard is waited for, and so are the updates on the last one.
                shards = self._shards(groups)
                hidden += min(made.seconds, optimize) * (1 - 1 / shards)
            first += updates
        parts["refresh"] += self._starts(len(stages))
        parts["checkpoint"] = self.checkpoints(stages) * self._checkpoint(updating)
        parts["evaluate"] = self.evaluations(generating)
        whole = sum(parts.values()) - hidden
        return Planned(tuple(stages), pool, generating, updating, parts, whole, tail)

    def generated(self, first: int, updates: int, devices: int, number: int = 0) -> Generated:
        """Return the generation of stage `number`, of `updates` updates, that begins after `first`.

        Small stages that begin with the same lengths get one of several draws of them in turn.
        """
        draws = max(1, min(_DRAWS, _GROUPS // self.setting.groups(updates)))
        return self._of_stage(self._known(first), updates, devices, number % draws)

    def updated(self, first: int, devices: int) -> float:
        """Return the seconds of an update in a stage that begins after `first` updates."""
        return self._of_update(self._known(first), devices)

    def _known(self, first: int) -> int:
        """Return the newest update, up to `first`, after which anything was measured."""
        updates = [seen.update for seen in self.setting.lengths.seen]
        known = [update for update in (*updates, *self.setting.measured.varied) if update <= first]
        return max(known, default=0)

    def require_fit(self) -> None:
        """Raise UsageError if weights, gradients and moments fit on no part of the devices."""
        setting, options = self.setting, self.setting.config.distributed
        shards = max(1, setting.ranks_on(setting.machine.devices) // options.replicas)
        state = FULL_STATE * setting.shape.parameters / shards
        # The parts of an adapter are small; its base model is counted.
        state = state / 4 if setting.config.lora.rank else state
        if not options.cpu_offload and state > setting.machine.usable:
            raise UsageError(
                f"weights, gradients and moments take {state / 2**30:.0f} GiB of each device, but "
                f"only {setting.machine.usable / 2**30:.0f} can be used; choose a --machine with "
                "more or larger devices, turn on --distributed.cpu_offload, or train an adapter "
                "(--lora.rank 16)"
            )

    def _generated(self, first: int, updates: int, devices: int, draw: int) -> Generated:
        setting = self.setting
        engines = setting.engines_on(devices)
        groups, size = setting.groups(updates), setting.config.schedule.group_size
        prompts, responses = setting.lengths.draw(first, groups, size, draw)
        return generate(prompts, responses, engines, setting.engine_prices(engines))

    def _updated(self, first: int, devices: int) -> float:
        setting, schedule = self.setting, self.setting.config.schedule
        prices = setting.update_prices(setting.ranks_on(devices))
        share = setting.gradient_share(first)
        seconds = []
        for sample in range(_SAMPLES):
            groups = setting.update_groups
            prompts, responses = setting.lengths.draw(first, groups, schedule.group_size, sample)
            # A part of a group stands for a chance of the whole group.
            whole = int(np.floor(share * groups + (sample + 0.5) / _SAMPLES))
            seconds.append(prices.update(prompts[:whole], responses[:whole]).seconds)
        return float(np.mean(seconds))

    def _logprobs(self, first: int, devices: int) -> float:
        """Return the seconds of all other policies' logprobs of a group."""
        setting, needs = self.setting, len(self.setting.config.needs)
        if not needs:
            return 0.0
        schedule = setting.config.schedule
        groups = schedule.problems_per_update
        drawn = setting.lengths.draw(first, groups, schedule.group_size)
        prices = setting.update_prices(setting.ranks_on(devices))
        return needs * prices.logprobs(*drawn) / groups

    def _shards(self, groups: int) -> int:
        config = self.setting.config
        rollouts = groups * config.schedule.group_size
        return max(1, -(-rollouts // config.rollouts.shard_rollouts))

    def _refresh(self) -> float:
        """Return the seconds of a refresh, without starts of engines."""
        setting = self.setting
        if setting.measured.refresh is not None:
            return setting.measured.refresh
        seconds = setting.machine.overheads.refresh
        if not setting.config.engine_in_process:  # weights are written, and read
            each = setting.engine_prices(setting.engines()).each
            seconds += 2 * each * setting.shape.parameters / setting.machine.rates.disk
        return seconds

    def _starts(self, refreshes: int) -> float:
        """Return the seconds of the starts of engines: one, or one at every refresh."""
        setting, engine = self.setting, self.setting.config.engine
        seconds = setting.measured.start
        if seconds is None:
            seconds = setting.machine.overheads.start if not setting.config.engine_in_process else 0
        return seconds * (refreshes if getattr(engine, "rest", "stay") == "end" else 1)

    def _score(self, rollouts: int) -> float:
        setting = self.setting
        if setting.measured.score is not None:
            return setting.measured.score * rollouts
        return setting.machine.overheads.score * rollouts

    def checkpoints(self, stages: Sequence[int]) -> int:
        """Return how many checkpoints the options ask for, those for the time aside."""
        options, total = self.setting.config.checkpoint, sum(stages)
        due = {total}
        if options.every:
            due |= set(range(options.every, total + 1, options.every))
        if options.stage_end:
            due |= set(np.cumsum(stages).tolist())
        return len(due)

    def _checkpoint(self, devices: int) -> float:
        """Return the seconds for which training waits at a checkpoint."""
        setting, machine = self.setting, self.setting.machine
        if setting.measured.checkpoint is not None:
            return setting.measured.checkpoint
        size = STATE * setting.shape.parameters
        if setting.config.checkpoint.beside_training:  # it waits only for a copy
            return 2 * size / (machine.rates.memory * machine.shares.memory) / max(1, devices)
        return size / machine.rates.disk + size / machine.rates.checksum

    def evaluations(self, devices: int) -> float:
        """Return the seconds of all evaluations on held-out problems; suites are not counted."""
        setting, options = self.setting, self.setting.config.evaluation
        engines, seconds = setting.engines_on(devices), 0.0
        prices = replace(setting.engine_prices(engines), factor=1.0)
        for update in self._evaluated():
            last = update == setting.config.schedule.total_updates
            samples = (options.final_samples if last else None) or options.samples
            drawn = setting.lengths.draw(update, setting.held_out(), samples)
            made = generate(*drawn, engines, prices)
            seconds += made.seconds + self._score(setting.held_out() * samples)
        return seconds * setting.measured.evaluate

    @property
    def evaluation_count(self) -> int:
        """Return the number of evaluations of the whole run."""
        return len(self._evaluated())

    def _evaluated(self) -> list[int]:
        every = self.setting.config.evaluation.every
        total = self.setting.config.schedule.total_updates
        return sorted({*range(0, total, every), total}) if every else []
