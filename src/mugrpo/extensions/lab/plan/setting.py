"""The input of a plan: config, the model's shape, machine and lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from mugrpo.config.engines import ContinuousOptions, VLLMOptions, VLLMServerOptions
from mugrpo.config.run import RunConfig
from mugrpo.config.stages import DynamicSampling, ScheduleOptions
from mugrpo.disk.errors import UsageError
from mugrpo.extensions.lab.plan.counts import FLOAT, Shape
from mugrpo.extensions.lab.plan.generation import EnginePrices, Engines
from mugrpo.extensions.lab.plan.lengths import Lengths
from mugrpo.extensions.lab.plan.machine import Machine
from mugrpo.extensions.lab.plan.updates import UpdatePrices
from mugrpo.model.pretrained import model_path

_HELD_OUT = 256  # problems, if the config does not say how many

_STAGES = 10_000


@dataclass(frozen=True)
class Setting:
    """Everything that a plan is computed from."""

    config: RunConfig
    shape: Shape
    machine: Machine
    lengths: Lengths
    varied: float = 1.0  # share of groups whose rewards differ

    def engines(self) -> Engines:
        """Return the engines that the config asks for."""
        engine, schedule = self.config.engine, self.config.schedule
        groups = -(-self.config.rollouts.shard_rollouts // schedule.group_size)
        if isinstance(engine, VLLMOptions):
            slots, parallel = engine.slots, engine.tensor_parallel
            share = engine.gpu_memory_utilization
            return Engines(engine.processes, slots, parallel, groups, True, share)
        if isinstance(engine, VLLMServerOptions):
            return Engines(len(engine.urls), engine.slots, 1, groups, True, 0.0)
        count = max(1, engine.processes)
        if isinstance(engine, ContinuousOptions):
            return Engines(count, engine.slots, 1, groups, False, 0.0)
        batch = max(1, engine.slots // schedule.group_size)  # groups decoded together
        return Engines(count, engine.slots, 1, batch, False, 0.0, static=True)

    def engines_on(self, devices: int) -> Engines:
        """Return as many engines as fit on GPUs; on a CPU, those that the config asks for."""
        engines = self.engines()
        if self.machine.kind == "cpu":
            return engines
        return replace(engines, count=max(1, devices // engines.tensor_parallel))

    def ranks_on(self, devices: int) -> int:
        """Return the ranks that make updates: one for each GPU, or those that the config asks."""
        return devices if self.machine.kind == "gpu" else self.config.distributed.processes

    def engine_prices(self, engines: Engines) -> EnginePrices:
        return EnginePrices(
            self.shape,
            self.machine,
            self.config.model.precision,
            engines.tensor_parallel,
            adapter=self.update_prices(1).adapter,
        )

    def update_prices(self, ranks: int) -> UpdatePrices:
        return UpdatePrices(self.shape, self.machine, self.config, ranks)

    def groups(self, updates: int) -> int:
        """Return the groups that a stage of `updates` updates trains on."""
        schedule = self.config.schedule
        batches = -(-updates // schedule.passes_per_batch)
        return batches * schedule.problems_per_update

    def sampled(self, first: int, updates: int) -> int:
        """Return the groups that a stage samples: more than it trains on if it chooses among them.

        It begins after `first` updates.
        """
        options, groups = self.config.sampling, self.groups(updates)
        if not isinstance(options, DynamicSampling):
            return groups
        return int(groups / max(self.varied, 1 / options.max_oversampling))

    def computed(self, first: int) -> float:
        """Return the share of a stage's groups that updates compute, if it begins after `first`."""
        config = self.config
        fixed = config.advantage.name == "group" and config.reference.name == "off"
        skipped = config.advantage.zero_variance_mask or fixed
        chosen = isinstance(config.sampling, DynamicSampling)
        return self.varied if skipped and not chosen else 1.0

    def state_bytes(self) -> float:
        """Return the bytes of weights, gradients and moments: a frozen model has only weights."""
        trained = self.update_prices(1).trained
        frozen = self.shape.parameters if self.config.lora.rank else 0
        return 4 * FLOAT * trained + FLOAT * frozen

    def held_out(self) -> int:
        """Return the number of held-out problems; 256 if only the data can tell."""
        problems: int | None = getattr(self.config.task, "eval_problems", None)
        return problems or _HELD_OUT


def shape_of(config: RunConfig, form: Path | None) -> Shape:
    """Return the shape of the config's model, from `form` or from its own config.json.

    Weights are not read. Raises UsageError if there is no config.json on this machine.
    """
    folder = form or Path(model_path(config.model))
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"{folder} has no config.json on this machine; name a directory that has the model's: "
            "--form DIR"
        )
    return Shape.read(folder)


def with_updates(config: RunConfig, updates: int) -> list[int]:
    """Return the updates of each stage if the engine is refreshed after every `updates`.

    The run has as many updates as the config plans; the last stage may be shorter. Raises
    UsageError if a stage has no whole number of passes over its batches.
    """
    passes, total = config.schedule.passes_per_batch, config.schedule.total_updates
    if updates < 1 or updates % passes:
        raise UsageError(
            f"--schedules {updates}: a stage has a whole number of batches of {passes} updates "
            f"(schedule.passes_per_batch); name multiples of {passes}"
        )
    updates = min(updates, total)
    refuse_many(-(-total // updates))
    return [min(updates, total - first) for first in range(0, total, updates)]


def as_configured(schedule: ScheduleOptions) -> list[int]:
    """Return the updates of each stage of a config's own schedule."""
    return [schedule.updates(stage) for stage in range(schedule.stages)]


def refuse_many(stages: int) -> None:
    """Raise UsageError if there are too many stages: a plan goes through each of them."""
    if stages > _STAGES:
        raise UsageError(
            f"the schedule has {stages:,} stages, and a plan at most {_STAGES:,}; lower "
            "schedule.stages"
        )
