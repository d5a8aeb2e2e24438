"""Wall-clock by part, for a schedule and for each way to divide the devices into pools.

colocated    all devices generate, then all of them make the updates
separate     some generate, the others make updates, one after the other
overlapped   the same, but a stage's updates begin after its first shard (`overlap = true`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.lab.plan.counts import FLOAT
from mugrpo.extensions.lab.plan.generation import Generated, generate
from mugrpo.extensions.lab.plan.setting import Setting, with_updates

PARTS = ("refresh", "generate", "score", "logprobs", "optimize", "checkpoint", "evaluate")
POOLS = ("colocated", "separate", "overlapped")

_SAMPLES = 3  # updates that stand for all of a stage
_DRAWS, _GROUPS = 32, 1024  # draws of a small stage, which have as many groups together
_EIGHTHS = (1, 2, 3, 4, 5, 6, 7)  # of the devices, for generation
CANARY_TOKENS = 16  # of each response, at most (mugrpo.stages.refresh)
STATE = 12  # bytes of a checkpoint for each parameter: the weight and two moments


@dataclass(frozen=True)
class Planned:
    """What a schedule costs with one way to divide the devices."""

    stages: Sequence[int]  # updates of each
    pool: str
    generating: int  # devices
    updating: int  # devices
    of_stages: Sequence[dict[str, float]]  # of each stage, the seconds of each of PARTS
    seconds: float  # of the run: less than all parts together if they overlap
    tail: float  # of the seconds of generation, those in which slots fall idle

    @cached_property
    def parts(self) -> dict[str, float]:
        """Return the seconds of each of PARTS in the whole run."""
        return {part: sum(stage[part] for stage in self.of_stages) for part in PARTS}

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
        of_stages, tail, hidden, first = list[dict[str, float]](), 0.0, 0.0, 0
        for number, updates in enumerate(stages):
            groups = self.setting.sampled(first, updates)
            made = self.generated(first, groups, generating, number)
            parts = self._stage(number, first, updates, generating, updating)
            of_stages.append(parts)
            tail += made.tail
            if pool == "overlapped":
                # The first shard is waited for, and so are the updates on the last one.
                shards = self._shards(groups)
                hidden += min(made.seconds, parts["optimize"]) * (1 - 1 / shards)
            first += updates
        self._add_rests(stages, of_stages, generating, updating)
        whole = sum(sum(parts.values()) for parts in of_stages) - hidden
        return Planned(tuple(stages), pool, generating, updating, of_stages, whole, tail)

    def _stage(
        self, number: int, first: int, updates: int, generating: int, updating: int
    ) -> dict[str, float]:
        """Return the seconds of a stage's parts, without checkpoints and evaluations."""
        groups = self.setting.sampled(first, updates)
        other = self._of_group(self._known(first), updating)
        every = getattr(self.setting.config.engine, "rest", "stay") == "end"
        return {
            "refresh": self.refresh(generating) + (self._start() if every or not number else 0.0),
            "generate": self.generated(first, groups, generating, number).seconds,
            "score": self._score(groups * self.setting.config.schedule.group_size),
            "logprobs": self.setting.groups(updates) * other,
            "optimize": updates * self.updated(first, updating),
            "checkpoint": 0.0,
            "evaluate": 0.0,
        }

    def _add_rests(
        self,
        stages: Sequence[int],
        of_stages: list[dict[str, float]],
        generating: int,
        updating: int,
    ) -> None:
        """Add the seconds of checkpoints and evaluations to those of the stages that they are in.

        An evaluation after a stage's last update is in that stage, as is the checkpoint.
        """
        ends = np.cumsum(stages)
        for update in self.checkpoints(stages):
            of_stages[np.searchsorted(ends, update)]["checkpoint"] += self.checkpoint(updating)
        for update, seconds in self.evaluations(generating).items():
            of_stages[np.searchsorted(ends, update)]["evaluate"] += seconds

    def generated(self, first: int, groups: int, devices: int, number: int = 0) -> Generated:
        """Return the generation of `groups` groups in stage `number`, which begins after `first`.

        Small stages that begin with the same lengths get one of several draws of them in turn.
        """
        draws = max(1, min(_DRAWS, _GROUPS // groups))
        return self._of_stage(self._known(first), groups, devices, number % draws)

    def updated(self, first: int, devices: int) -> float:
        """Return the seconds of an update in a stage that begins after `first` updates."""
        return self._of_update(self._known(first), devices)

    def _known(self, first: int) -> int:
        """Return the newest update, up to `first`, after which lengths are known."""
        updates = [seen.update for seen in self.setting.lengths.seen]
        known = [update for update in updates if update <= first]
        return max(known, default=0)

    def require_fit(self) -> None:
        """Raise UsageError if weights, gradients and moments fit on no part of the devices."""
        setting, options = self.setting, self.setting.config.distributed
        shards = max(1, setting.ranks_on(setting.machine.devices))
        state = setting.state_bytes() / shards
        if not options.cpu_offload and state > setting.machine.usable:
            raise UsageError(
                f"weights, gradients and moments take {state / 2**30:.0f} GiB of each device, but "
                f"only {setting.machine.usable / 2**30:.0f} can be used; choose a --machine with "
                "more or larger devices, turn on --distributed.cpu_offload, or train an adapter "
                "(--lora.rank 16)"
            )

    def _generated(self, first: int, groups: int, devices: int, draw: int) -> Generated:
        setting = self.setting
        engines = setting.engines_on(devices)
        size = setting.config.schedule.group_size
        prompts, responses = setting.lengths.draw(first, groups, size, draw)
        return generate(prompts, responses, engines, setting.engine_prices(engines))

    def _updated(self, first: int, devices: int) -> float:
        setting, schedule = self.setting, self.setting.config.schedule
        prices = setting.update_prices(setting.ranks_on(devices))
        share = setting.computed(first)
        seconds = []
        groups = schedule.problems_per_update
        for sample in range(_SAMPLES):
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

    def refresh(self, devices: int) -> float:
        """Return the seconds of a refresh, without starts of engines."""
        setting = self.setting
        seconds = setting.machine.overheads.refresh + self._canary(devices)
        if not setting.config.engine_in_process:  # weights are written, and read
            updates, vllm = setting.update_prices(1), setting.config.engine.name == "vllm"
            # A checkpoint's weights and an adapter's are in fp32; vLLM gets those that it computes.
            rounded = vllm and not updates.adapter
            each = setting.engine_prices(setting.engines()).each if rounded else FLOAT
            seconds += 2 * each * updates.trained / setting.machine.rates.disk
        return seconds

    def _canary(self, devices: int) -> float:
        """Return the seconds of the canary: a few short responses, and the trainer's logprobs."""
        setting, count = self.setting, self.setting.config.engine.canary_responses
        if not count:
            return 0.0
        prompts, responses = setting.lengths.draw(0, count, 1)
        responses = np.minimum(responses, CANARY_TOKENS)
        engines = replace(setting.engines(), count=1)
        made = generate(prompts, responses, engines, setting.engine_prices(engines)).seconds
        many = setting.engines_on(devices).count  # all at once, and then compared together
        compared = setting.update_prices(setting.ranks_on(devices)).logprobs(prompts, responses)
        return made + many * compared

    def _start(self) -> float:
        """Return the seconds of a start of the engines."""
        setting = self.setting
        return setting.machine.overheads.start if not setting.config.engine_in_process else 0.0

    def _score(self, rollouts: int) -> float:
        setting = self.setting
        return setting.machine.overheads.score * rollouts

    def checkpoints(self, stages: Sequence[int]) -> list[int]:
        """Return the updates after which the options ask for checkpoints, times aside."""
        options, total = self.setting.config.checkpoint, sum(stages)
        due = {total}
        if options.every:
            due |= set(range(options.every, total + 1, options.every))
        else:
            due |= set(np.cumsum(stages).tolist())
        return sorted(due)

    def checkpoint(self, devices: int) -> float:
        """Return the seconds for which training waits at a checkpoint."""
        machine = self.setting.machine
        size = STATE * self.setting.update_prices(1).trained
        return 2 * size / (machine.rates.memory * machine.shares.memory) / max(1, devices)  # a copy

    def evaluations(self, devices: int) -> dict[int, float]:
        """Return update -> seconds of its evaluation on held-out problems, suites aside.

        It begins with a refresh.
        """
        config = self.setting.config
        options, total = config.evaluation, config.schedule.total_updates
        found = {}
        for update in {*range(0, total, options.every), total} if options.every else ():
            last = update == total
            seconds = self._sampled_once(
                update, devices, (options.final_samples if last else None) or options.samples
            )
            if last and options.final_greedy:
                seconds += self._sampled_once(update, devices, 1)
            found[update] = seconds + self.refresh(devices)
        return found

    def _sampled_once(self, update: int, devices: int, samples: int) -> float:
        """Return the seconds in which the held-out problems get `samples` responses each."""
        setting = self.setting
        engines, problems = setting.engines_on(devices), setting.held_out()
        prices = setting.engine_prices(engines)
        made = generate(*setting.lengths.draw(update, problems, samples), engines, prices)
        return made.seconds + self._score(problems * samples)
