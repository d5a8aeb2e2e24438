"""Wall-clock of a run by part, for its own schedule and for others with as many updates.

All devices of the machine generate, then all of them make the updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from mugrpo.config.engines import VLLMOptions
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import FinishReason, Rollout
from mugrpo.extensions.lab.plan.counts import FLOAT, STEP_BYTES, STEP_FLOP, Shape, read_shape
from mugrpo.extensions.lab.plan.generation import EnginePrices, Engines, Generated, Whole, generate
from mugrpo.extensions.lab.plan.lengths import Lengths
from mugrpo.extensions.lab.plan.machine import Machine
from mugrpo.model.pretrained import model_path
from mugrpo.optimize.cut import Price, rounds, work

PARTS = ("refresh", "generate", "score", "logprobs", "optimize", "checkpoint", "evaluate")

STATE = 12  # bytes of a checkpoint for each parameter: the weight and two moments
_SAMPLES = 3  # updates that stand for all: a single draw of few groups may lack the long tail
_HELD_OUT = 256  # problems, if the config does not say how many


@dataclass(frozen=True)
class UpdatePrices:
    """The cost of updates of a model of `shape` on `ranks` ranks."""

    shape: Shape
    machine: Machine
    config: RunConfig
    ranks: int

    def update(self, prompts: Whole, responses: Whole) -> tuple[float, int]:
        """Return the seconds of an update on the groups, and the micro-batches of each rank.

        Prompts are [D], responses [D, G].
        """
        overheads, options = self.machine.overheads, self.config.optimizer
        rollouts = as_rollouts(prompts, responses)
        parts = rounds(
            rollouts,
            options.micro_batch_tokens,
            share=True,
            ranks=self.ranks,
            price=price_of(self.shape),
        )
        flop, price = self._of_token()
        # Ranks wait for the first of a round, which has the most work.
        longest = [work([rollouts[i] for i in p], price, share=True) for p in parts[:: self.ranks]]
        seconds = sum(max(flop * one / self._operations, self._gathering) for one in longest)
        seconds += overheads.micro_batch * len(longest) + overheads.update + self.adamw
        return seconds, len(longest)

    def logprobs(self, prompts: Whole, responses: Whole) -> float:
        """Return the seconds of one policy's logprobs of the groups: a forward pass."""
        whole = work(as_rollouts(prompts, responses), price_of(self.shape), share=True)
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
        return self.shape.adapter(lora.rank) if lora.rank else 0

    @property
    def _operations(self) -> float:
        machine = self.machine
        return machine.operations(machine.precision_of(self.config.model)) * machine.shares.update

    @property
    def _gathering(self) -> float:
        """Return the seconds in which ranks exchange weights and gradients for a micro-batch."""
        shards, rates = self.ranks, self.machine.rates
        if self.ranks == 1:
            return 0.0
        each = 2 if self.machine.precision_of(self.config.model) == "bf16" else FLOAT
        whole = 2 * each * self.shape.parameters + FLOAT * self.trained
        size = whole * (shards - 1) / shards
        link = rates.link if shards <= self.machine.per_machine else rates.network
        return size / (link * self.machine.shares.link)

    @property
    def adamw(self) -> float:
        """Return the seconds of clipping and of the optimizer's step."""
        rates, shares = self.machine.rates, self.machine.shares
        each = max(STEP_BYTES / (rates.memory * shares.memory), STEP_FLOP / rates.fp32)
        return each * self.trained / self.ranks


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
    return [
        Rollout(
            problem_id=str(group),
            occurrence=0,
            sample=sample,
            seed=0,
            prompt_ids=np.full(prompt, group, np.int32),
            response_ids=np.zeros(length, np.int32),
            behavior_logprobs=np.zeros(0, np.float32),
            finish_reason=FinishReason.STOP,
            temperature=1.0,
            policy_step=0,
        )
        for group, (prompt, lengths) in enumerate(zip(prompts, responses, strict=True))
        for sample, length in enumerate(lengths)
    ]


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
    """Plans a config on a machine, with a model of `shape` and responses of given lengths."""

    def __init__(self, config: RunConfig, shape: Shape, machine: Machine, lengths: Lengths) -> None:
        self.config, self.shape, self.machine, self.lengths = config, shape, machine, lengths
        gpus = machine.kind == "gpu"
        self.ranks = machine.devices if gpus else config.distributed.processes
        self.updates = UpdatePrices(shape, machine, config, self.ranks)
        self.engines = self._engines()
        self.prices = EnginePrices(
            shape,
            machine,
            machine.precision_of(config.model),
            self.engines.tensor_parallel,
            adapter=self.updates.adapter,
        )
        self._generated = cache(self._generate)  # stages of the same size cost the same

    def compared(self, schedules: Sequence[int]) -> list[Planned]:
        """Return the plan of the config's own stages, and of each number of updates per refresh.

        Raises UsageError if the model does not fit, or a number is no whole number of batches.
        """
        several = [self.own_stages()]
        for number in schedules:
            stages = with_updates(self.config, number)
            several += [stages] if stages not in several else []
        self.require_fit()
        return [self.planned(stages) for stages in several]

    def own_stages(self) -> list[int]:
        """Return the updates of each stage of the config's own schedule."""
        schedule = self.config.schedule
        return [schedule.updates(stage) for stage in range(schedule.stages)]

    def planned(self, stages: Sequence[int]) -> Planned:
        """Return the plan of stages with numbers of updates."""
        config, total = self.config, sum(stages)
        made = [self._generated(self.groups(updates)) for updates in stages]
        parts = dict.fromkeys(PARTS, 0.0)
        starts = len(stages) if getattr(config.engine, "rest", "stay") == "end" else 1
        if not config.engine_in_process:
            parts["refresh"] = starts * self.machine.overheads.start
        parts["refresh"] += len(stages) * self.refresh()
        parts["generate"] = sum(each.seconds for each in made)
        rollouts = sum(map(self.groups, stages)) * config.schedule.group_size
        parts["score"] = self.machine.overheads.score * rollouts
        if needs := len(config.needs):
            batches = total // config.schedule.passes_per_batch
            parts["logprobs"] = needs * batches * self.updates.logprobs(*self.drawn_update())
        parts["optimize"] = total * self._update()
        parts["checkpoint"] = len(self.checkpoints(stages)) * self.checkpoint()
        parts["evaluate"] = self.evaluations(total)
        return Planned(tuple(stages), parts, sum(each.tail for each in made))

    def groups(self, updates: int) -> int:
        """Return the groups of a stage with `updates` updates."""
        schedule = self.config.schedule
        return -(-updates // schedule.passes_per_batch) * schedule.problems_per_update

    def drawn_update(self, seed: int = 0) -> tuple[Whole, Whole]:
        """Return the lengths of an update's groups: prompts [D], responses [D, G]."""
        schedule = self.config.schedule
        return self.lengths.draw(schedule.problems_per_update, schedule.group_size, seed)

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
        made = generate(*self.lengths.draw(problems, options.samples), self.engines, self.prices)
        judged = self.machine.overheads.score * problems * options.samples
        return times * (made.seconds + judged + self.refresh())

    def _engines(self) -> Engines:
        """Return as many engines as fit on GPUs; on a CPU, those that the config asks for."""
        engine, parallel, share = self.config.engine, 1, 0.0
        count = max(1, getattr(engine, "processes", 1))
        if isinstance(engine, VLLMOptions):
            parallel, share = engine.tensor_parallel, engine.gpu_memory_utilization
        if engine.runs_already:
            count = len(getattr(engine, "urls", (1,)))
        if self.machine.kind == "gpu":
            count = max(1, self.machine.devices // parallel)
        return Engines(count, engine.slots, parallel, share)

    def _generate(self, groups: int) -> Generated:
        drawn = self.lengths.draw(groups, self.config.schedule.group_size)
        return generate(*drawn, self.engines, self.prices)

    def _update(self) -> float:
        """Return the seconds of an update in which every group has a gradient."""
        drawn = map(self.drawn_update, range(_SAMPLES))
        return float(np.mean([self.updates.update(*each)[0] for each in drawn]))


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
    return read_shape(folder)


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
    return [min(updates, total - first) for first in range(0, total, updates)]
