"""Wall-clock of a run by part, for its own schedule and for others with as many updates.

All devices of the machine generate, then all of them make the updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from mugrpo.config.engines import ContinuousOptions, VLLMOptions, VLLMServerOptions
from mugrpo.config.run import RunConfig
from mugrpo.config.stages import DynamicSampling
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import FinishReason, Rollout
from mugrpo.extensions.lab.plan.counts import FLOAT, Shape
from mugrpo.extensions.lab.plan.generation import EnginePrices, Engines, Generated, Whole, generate
from mugrpo.extensions.lab.plan.lengths import Lengths
from mugrpo.extensions.lab.plan.machine import Machine
from mugrpo.model.pretrained import model_path
from mugrpo.optimize.cut import Price, rounds, work

_NONE = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Update:
    """What an update consists of, in seconds, and how evenly its ranks work."""

    seconds: float
    rounds: int  # micro-batches that each rank computes
    balance: float  # the work of all ranks together, as a share of their time


@dataclass(frozen=True)
class UpdatePrices:
    """The cost of updates of a model of `shape` on `ranks` ranks."""

    shape: Shape
    machine: Machine
    config: RunConfig
    ranks: int

    def update(self, prompts: Whole, responses: Whole) -> Update:
        """Return an update on the groups: prompts [D], responses [D, G]."""
        shape, overheads, options = self.shape, self.machine.overheads, self.config.optimizer
        rollouts = as_rollouts(prompts, responses)
        parts = rounds(
            rollouts,
            options.micro_batch_tokens,
            share=True,
            ranks=self.ranks,
            price=price_of(shape),
        )
        flop, price = self._of_token()
        works = [work([rollouts[i] for i in p], price, share=True) for p in parts]
        longest = works[:: self.ranks]
        seconds = sum(max(flop * one / self._operations, self._gathering) for one in longest)
        seconds += overheads.micro_batch * len(longest) + overheads.update + self.adamw
        balance = sum(works) / (self.ranks * sum(longest)) if works else 1.0
        return Update(seconds, len(longest), balance)

    def logprobs(self, prompts: Whole, responses: Whole) -> float:
        """Return the seconds of one policy's logprobs of the groups: a forward pass."""
        rollouts = as_rollouts(prompts, responses)
        whole = work(rollouts, price_of(self.shape), share=True)
        flop = 2.0 * self.shape.linear_parameters * whole
        return flop / (self._operations * self.ranks)

    def _of_token(self) -> tuple[float, Price]:
        """Return the operations of a token in the linear layers, and logits and pairs in them.

        A backward pass has the gradients by inputs and by weights. Those by the weights of a model
        under an adapter are not computed. Checkpointed activations take another forward pass.
        """
        shape, again = self.shape, 1 if self.config.model.gradient_checkpointing else 0
        passes = again + (2 if self.adapter else 3)
        flop = 2.0 * (passes * shape.linear_parameters + (3 + again) * self.adapter)
        logit, pair = passes * shape.logits_flop(1.0), (3 + again) * shape.attention_flop(1.0)
        return flop, Price(logit / flop, pair / flop)

    @property
    def trained(self) -> int:
        """Return the number of parameters that are trained."""
        return self.adapter or self.shape.parameters

    @property
    def adapter(self) -> int:
        """Return the parameters of the adapter; 0 if the model is trained."""
        lora = self.config.lora
        return self.shape.adapter(lora.rank, lora.targets) if lora.rank else 0

    @property
    def _operations(self) -> float:
        machine = self.machine
        return machine.operations(self.config.model.precision) * machine.shares.update

    @property
    def _gathering(self) -> float:
        """Return the seconds in which ranks exchange weights and gradients for a micro-batch."""
        shards, rates = self.ranks, self.machine.rates
        if self.ranks == 1:
            return 0.0
        each = 2 if self.config.model.precision == "bf16" else FLOAT
        whole = 2 * each * self.shape.parameters + FLOAT * self.trained
        size = whole * (shards - 1) / shards
        link = rates.link if shards <= self.machine.per_machine else rates.network
        return size / (link * self.machine.shares.link)

    @property
    def adamw(self) -> float:
        """Return the seconds of the optimizer's step."""
        cost = self.shape.adamw(self.trained)
        rates, shares = self.machine.rates, self.machine.shares
        seconds = max(cost.bytes / (rates.memory * shares.memory), cost.flop / rates.fp32)
        return seconds / self.ranks


def price_of(shape: Shape) -> Price:
    """Return the operations of a model's parts, as the cut of an update counts them."""
    weights = shape.linear_parameters
    return Price(
        logit=shape.hidden * shape.vocab / weights, pair=shape.attention_flop(1.0) / (2.0 * weights)
    )


def as_rollouts(prompts: Whole, responses: Whole) -> Sequence[Rollout]:
    """Return rollouts of the lengths: prompts [D], responses [D, G]. Their ids mean nothing.

    Each group has a prompt of its own.
    """
    made = []
    for group, (prompt, lengths) in enumerate(zip(prompts, responses, strict=True)):
        ids = np.full(prompt, group, np.int32)
        made += [
            Rollout(
                problem_id=str(group),
                occurrence=0,
                sample=sample,
                seed=0,
                prompt_ids=ids,
                response_ids=np.zeros(length, np.int32),
                behavior_logprobs=_NONE,
                finish_reason=FinishReason.STOP,
                temperature=1.0,
                policy_step=0,
            )
            for sample, length in enumerate(lengths)
        ]
    return made


PARTS = ("refresh", "generate", "score", "logprobs", "optimize", "checkpoint", "evaluate")

STATE = 12  # bytes of a checkpoint for each parameter: the weight and two moments
_SAMPLES = 3  # updates that stand for all of a stage
_HELD_OUT = 256  # problems, if the config does not say how many
_STAGES = 10_000  # a plan goes through each of them


@dataclass(frozen=True)
class Planned:
    """What a schedule costs."""

    stages: Sequence[int]  # updates of each
    parts: dict[str, float]  # of PARTS: seconds in the whole run
    tail: float  # of the seconds of generation, those in which slots fall idle

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


class Planner:
    """Plans a config on a machine, with a model of `shape` and responses of given lengths.

    `varied` is the share of groups whose rewards differ.
    """

    def __init__(
        self,
        config: RunConfig,
        shape: Shape,
        machine: Machine,
        lengths: Lengths,
        varied: float = 1.0,
    ) -> None:
        self.config, self.shape, self.machine = config, shape, machine
        self.lengths, self.varied = lengths, varied
        gpus = machine.kind == "gpu"
        self.ranks = machine.devices if gpus else config.distributed.processes
        self.updates = UpdatePrices(shape, machine, config, self.ranks)
        self.engines = self._engines()
        self.prices = EnginePrices(
            shape,
            machine,
            config.model.precision,
            self.engines.tensor_parallel,
            adapter=self.updates.adapter,
        )
        # Stages that begin with the same lengths, and have the same size, cost the same.
        self._generated = cache(self._generate)
        self._updated = cache(self._update)

    def compared(self, schedules: Sequence[int]) -> list[Planned]:
        """Return the plan of the config's own stages, and of each number of updates per refresh.

        Raises UsageError if the model does not fit, or a number is no whole number of batches.
        """
        own = self.own_stages()
        several = [own]
        for number in schedules:
            stages = with_updates(self.config, number)
            several += [stages] if stages not in several else []
        self.require_fit()
        return [self.planned(stages) for stages in several]

    def own_stages(self) -> list[int]:
        """Return the updates of each stage of the config's own schedule."""
        schedule = self.config.schedule
        _refuse_many(schedule.stages)
        return [schedule.updates(stage) for stage in range(schedule.stages)]

    def planned(self, stages: Sequence[int]) -> Planned:
        """Return the plan of stages with numbers of updates."""
        config, parts, tail, first = self.config, dict.fromkeys(PARTS, 0.0), 0.0, 0
        size, needs = config.schedule.group_size, len(config.needs)
        starts = len(stages) if getattr(config.engine, "rest", "stay") == "end" else 1
        if not config.engine_in_process:
            parts["refresh"] += starts * self.machine.overheads.start
        for updates in stages:
            groups = self.sampled(updates)
            known = self.lengths.at(first).update
            made = self._generated(known, groups)
            tail += made.tail
            parts["refresh"] += self.refresh()
            parts["generate"] += made.seconds
            parts["score"] += self.machine.overheads.score * groups * size
            parts["optimize"] += updates * self._updated(known)
            if needs:
                drawn = self.lengths.draw(first, config.schedule.problems_per_update, size)
                batches = updates // config.schedule.passes_per_batch
                parts["logprobs"] += needs * batches * self.updates.logprobs(*drawn)
            first += updates
        parts["checkpoint"] = len(self.checkpoints(stages)) * self.checkpoint()
        parts["evaluate"] = self.evaluations(first)
        return Planned(tuple(stages), parts, tail)

    def sampled(self, updates: int) -> int:
        """Return the groups that a stage samples: more than it trains on if it chooses among them.

        The stage makes `updates` updates.
        """
        schedule, options = self.config.schedule, self.config.sampling
        groups = -(-updates // schedule.passes_per_batch) * schedule.problems_per_update
        if not isinstance(options, DynamicSampling):
            return groups
        return int(groups / max(self.varied, 1 / options.max_oversampling))

    def state_bytes(self) -> float:
        """Return the bytes of weights, gradients and moments: a frozen model has only weights."""
        frozen = self.shape.parameters if self.config.lora.rank else 0
        return 4 * FLOAT * self.updates.trained + FLOAT * frozen

    def require_fit(self) -> None:
        """Raise UsageError if weights, gradients and moments do not fit on the devices."""
        state = self.state_bytes() / self.ranks
        if state > self.machine.usable:
            raise UsageError(
                f"weights, gradients and moments take {state / 2**30:.0f} GiB of each device, but "
                f"only {self.machine.usable / 2**30:.0f} can be used; choose a --machine with "
                "more or larger devices, or train an adapter (--lora.rank 16)"
            )

    def refresh(self) -> float:
        """Return the seconds of a refresh, without starts of engines."""
        seconds = self.machine.overheads.refresh
        if not self.config.engine_in_process:  # weights are written, and read
            # A checkpoint's weights and an adapter's are in fp32; vLLM gets those that it computes.
            rounded = self.config.engine.name == "vllm" and not self.updates.adapter
            each = self.prices.each if rounded else FLOAT
            seconds += 2 * each * self.updates.trained / self.machine.rates.disk
        return seconds

    def checkpoints(self, stages: Sequence[int]) -> list[int]:
        """Return the updates after which the options ask for checkpoints, times aside."""
        every, total = self.config.checkpoint.every, sum(stages)
        return sorted({*range(every, total, every), total}) if every else np.cumsum(stages).tolist()

    def checkpoint(self) -> float:
        """Return the seconds for which training waits at a checkpoint: for a copy in memory."""
        rate = self.machine.rates.memory * self.machine.shares.memory
        return 2 * STATE * self.updates.trained / rate / self.ranks

    def evaluations(self, total: int) -> float:
        """Return the seconds of evaluations on held-out problems, each with a refresh.

        Suites are not counted.
        """
        options = self.config.evaluation
        times = len({*range(0, total, options.every), total}) if options.every else 0
        problems = getattr(self.config.task, "eval_problems", None) or _HELD_OUT
        drawn = self.lengths.draw(0, problems, options.samples)
        made = generate(*drawn, self.engines, self.prices).seconds
        judged = self.machine.overheads.score * problems * options.samples
        return times * (made + judged + self.refresh())

    def _engines(self) -> Engines:
        """Return as many engines as fit on GPUs; on a CPU, those that the config asks for."""
        engine, schedule = self.config.engine, self.config.schedule
        groups = -(-self.config.rollouts.shard_rollouts // schedule.group_size)
        parallel, share, count = 1, 0.0, max(1, getattr(engine, "processes", 1))
        if isinstance(engine, VLLMOptions):
            parallel, share = engine.tensor_parallel, engine.gpu_memory_utilization
        if isinstance(engine, VLLMServerOptions):
            count = len(engine.urls)
        if self.machine.kind == "gpu":
            count = max(1, self.machine.devices // parallel)
        streams = not isinstance(engine, ContinuousOptions)
        return Engines(count, engine.slots, parallel, groups, streams, share)

    def _generate(self, first: int, groups: int) -> Generated:
        drawn = self.lengths.draw(first, groups, self.config.schedule.group_size)
        return generate(*drawn, self.engines, self.prices)

    def _update(self, first: int) -> float:
        """Return the seconds of an update in a stage that begins after `first` updates."""
        config, seconds = self.config, []
        groups = config.schedule.problems_per_update
        plain = config.advantage.name == "group" and config.reference.name == "off"
        skipped = config.advantage.zero_variance_mask or plain
        chosen = isinstance(config.sampling, DynamicSampling)
        share = self.varied if skipped and not chosen else 1.0
        for sample in range(_SAMPLES):
            drawn = self.lengths.draw(first, groups, config.schedule.group_size, sample)
            # A part of a group stands for a chance of the whole group.
            whole = int(np.floor(share * groups + (sample + 0.5) / _SAMPLES))
            seconds.append(self.updates.update(*(part[:whole] for part in drawn)).seconds)
        return float(np.mean(seconds))


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
    _refuse_many(-(-total // updates))
    return [min(updates, total - first) for first in range(0, total, updates)]


def _refuse_many(stages: int) -> None:
    if stages > _STAGES:
        raise UsageError(
            f"the schedule has {stages:,} stages, and a plan at most {_STAGES:,}; lower "
            "schedule.stages"
        )
