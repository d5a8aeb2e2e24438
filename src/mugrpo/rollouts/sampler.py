"""Sample shards of rollouts from an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mugrpo.disk.places import passing
from mugrpo.disk.records import Problem, Rollout
from mugrpo.disk.shards import ShardSet, write_rollouts
from mugrpo.engines.base import Completion, Decoded, Engine, Request
from mugrpo.rollouts.lengths import ExpectedLengths
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.schedule import rollout_seed

Draw = tuple[Problem, int]  # a problem and its occurrence: one group to sample


class Sampler:
    """A sampler of groups of rollouts: `group_size` responses to each problem.

    `stage` is the stage's number or "evaluation"; it and `seed` enter the seed of each rollout, see
    `rollout_seed`. `policy_step` is the number of updates that the engine's weights have received.
    The groups that are `expected` to have the longest responses are generated first.
    """

    def __init__(
        self,
        engine: Engine,
        encode: PromptEncoder,
        *,
        seed: int,
        stage: str,
        group_size: int,
        temperature: float,
        max_new_tokens: int,
        policy_step: int,
        expected: ExpectedLengths | None = None,
    ) -> None:
        self.expected = expected or ExpectedLengths()
        self.engine = engine
        self.encode = encode
        self.seed = seed
        self.stage = stage
        self.group_size = group_size
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        self.policy_step = policy_step

    def sample(
        self,
        groups: Sequence[Draw],
        on_decoded: Callable[[Decoded], None],
        *,
        samples: int | None = None,
        longest: int | None = None,
    ) -> list[Rollout]:
        """Return the rollouts of `groups` in order. `on_decoded` is called as responses finish.

        `samples` limits the responses per group, `longest` the tokens per response.
        """
        size = samples or self.group_size
        keys, requests = [], []
        expected = []
        for problem, occurrence in groups:
            prompt_ids = self.encode(problem)
            expected.append(self.expected.of(problem.id, len(prompt_ids)))
            for sample in range(size):
                seed = rollout_seed(self.seed, self.stage, problem.id, occurrence, sample)
                keys.append((problem.id, occurrence, sample))
                requests.append(Request(prompt_ids, seed))
        longest_first = sorted(range(len(groups)), key=lambda group: -expected[group])
        order = [group * size + sample for group in longest_first for sample in range(size)]
        completions: dict[int, Completion] = {}
        for decoded in self.engine.generate(
            [requests[index] for index in order],
            temperature=self.temperature,
            max_new_tokens=min(self.max_new_tokens, longest or self.max_new_tokens),
        ):
            completions.update((order[place], result) for place, result in decoded.completions)
            on_decoded(decoded)
        in_order = [completions[index] for index in range(len(requests))]
        return [
            Rollout(
                problem_id=problem_id,
                occurrence=occurrence,
                sample=sample,
                seed=request.seed,
                prompt_ids=request.prompt_ids,
                response_ids=completion.ids,
                behavior_logprobs=completion.logprobs,
                finish_reason=completion.finish_reason,
                temperature=self.temperature,
                policy_step=self.policy_step,
            )
            for (problem_id, occurrence, sample), request, completion in zip(
                keys, requests, in_order, strict=True
            )
        ]

    def sample_shard(
        self, groups: Sequence[Draw], on_decoded: Callable[[Decoded], None]
    ) -> SampledShard:
        """Return the rollouts of `groups` as a shard, not yet published."""
        slots = 0

        def count(decoded: Decoded) -> None:
            nonlocal slots
            slots += decoded.slots
            on_decoded(decoded)

        passing("sampling", self.stage)
        began = time.monotonic()
        rollouts = self.sample(groups, count)
        passing("sampled", self.stage)
        return SampledShard(rollouts, slots, time.monotonic() - began)


@dataclass(frozen=True)
class SampledShard:
    """A shard's rollouts, and what sampling them cost."""

    rollouts: Sequence[Rollout]
    slots: int  # token positions computed for them, idle and padded ones included
    seconds: float

    def publish(self, shards: ShardSet, shard: int, **notes: Any) -> None:
        """Publish the rollouts as shard `shard`; the manifest gets their cost and `notes`."""
        cost = {"slots": self.slots, "seconds": self.seconds}
        write_rollouts(shards, shard, self.rollouts, **cost, **notes)
