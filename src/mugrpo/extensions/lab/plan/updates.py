"""Seconds of an update: the counted operations of its rounds of micro-batches, and its bytes.

The micro-batches and their rounds are those that the run itself would make. Ranks gather the
weights together, so a round takes as long as its most expensive micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mugrpo.config.run import RunConfig
from mugrpo.disk.records import FinishReason, Rollout
from mugrpo.extensions.lab.plan.counts import FLOAT, Shape
from mugrpo.extensions.lab.plan.generation import Whole
from mugrpo.extensions.lab.plan.machine import Machine
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
    """What updates cost with a model of `shape`, made by `ranks` ranks."""

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
            share=options.share_prompts,
            ranks=self.ranks,
            price=price_of(shape),
        )
        flop, price = self._of_token()
        works = [work([rollouts[i] for i in p], price, share=options.share_prompts) for p in parts]
        longest = works[:: self.ranks]
        seconds = sum(max(flop * one / self._operations, self._gathering) for one in longest)
        seconds += overheads.micro_batch * len(longest) + overheads.update + self.adamw
        balance = sum(works) / (self.ranks * sum(longest)) if works else 1.0
        return Update(seconds, len(longest), balance)

    def logprobs(self, prompts: Whole, responses: Whole) -> float:
        """Return the seconds of one policy's logprobs of the groups: a forward pass."""
        rollouts = as_rollouts(prompts, responses)
        whole = work(rollouts, price_of(self.shape), share=self.config.optimizer.share_prompts)
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
