"""Sample shards of rollouts from an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mugrpo.disk.publishing import passing
from mugrpo.disk.records import Problem, Rollout
from mugrpo.disk.shards import ShardSet, write_rollouts
from mugrpo.engines.base import Completion, Decoded, Engine, Request, StreamingEngine
from mugrpo.rollouts.lengths import ExpectedLengths
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.schedule import rollout_seed

Draw = tuple[Problem, int]  # a problem and its occurrence: one group to sample
PieceName = tuple[int, int]  # a shard, and the number of the piece of it
Piece = tuple[PieceName, Sequence[Draw]]


class Sampler:
    """A sampler of groups of rollouts: `group_size` responses to each problem.

    `stage` is the stage's number or "evaluation"; it and `seed` enter the seed of each rollout, see
    `rollout_seed`. `policy_step` is the number of updates that the engine's weights have received.
    The groups that are `expected` to have the longest responses are generated first. `top_p` is for
    evaluations, see `Engine.generate`.
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
        top_p: float = 1.0,
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
        self.top_p = top_p
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
        asked = self._asked(groups, samples or self.group_size)
        completions: dict[int, Completion] = {}
        for decoded in self.engine.generate(
            asked.requests,
            temperature=self.temperature,
            max_new_tokens=min(self.max_new_tokens, longest or self.max_new_tokens),
            top_p=self.top_p,
        ):
            completions.update(decoded.completions)
            on_decoded(decoded)
        return self._rollouts(asked, completions)

    def sample_pieces(
        self, take: Callable[[], Piece | None], on_decoded: Callable[[Decoded], None]
    ) -> Iterator[tuple[PieceName, SampledShard]]:
        """Yield (name, sampled shard) for each piece that `take` returns, until it returns None.

        An engine that takes requests while it works gets those of the next piece as soon as it has
        room, so that it does not idle while the last responses of the piece before run. An exact
        one gets one piece at a time, so that a piece's bits do not depend on the others.
        """
        engine = self.engine
        if not (isinstance(engine, StreamingEngine) and engine.streams and not engine.exact):
            while (piece := take()) is not None:
                yield piece[0], self.sample_shard(piece[1], on_decoded)
            return
        running: list[_Running] = []

        def more() -> Sequence[Request] | None:
            if (piece := take()) is None:
                return None
            first = running[-1].end if running else ended
            running.append(_Running(piece[0], self._asked(piece[1], self.group_size), first))
            return running[-1].asked.requests

        ended, began = 0, time.monotonic()
        decodings = engine.generate(
            more() or (),
            temperature=self.temperature,
            max_new_tokens=self.max_new_tokens,
            top_p=self.top_p,
            more=more,
        )
        for decoded in decodings:
            for index, completion in decoded.completions:
                next(p for p in running if index < p.end).put(index, completion)
            on_decoded(decoded)
            running[0].slots += decoded.slots
            while running and running[0].done():
                first, now = running.pop(0), time.monotonic()
                rollouts = self._rollouts(first.asked, first.completions)
                ended = first.end
                yield first.name, SampledShard(rollouts, first.slots, now - began)
                began = now

    def _asked(self, groups: Sequence[Draw], size: int) -> _Asked:
        """Return requests for `size` responses to each of `groups`, the longest expected first."""
        keys, requests, expected = [], [], []
        for problem, occurrence in groups:
            prompt_ids = self.encode(problem)
            expected.append(self.expected.of(problem.id, len(prompt_ids)))
            for sample in range(size):
                seed = rollout_seed(self.seed, self.stage, problem.id, occurrence, sample)
                keys.append((problem.id, occurrence, sample))
                requests.append(Request(prompt_ids, seed))
        longest_first = sorted(range(len(groups)), key=lambda group: -expected[group])
        order = [group * size + sample for group in longest_first for sample in range(size)]
        return _Asked(keys, [requests[place] for place in order], order)

    def _rollouts(self, asked: _Asked, completions: Mapping[int, Completion]) -> list[Rollout]:
        """Return the rollouts in the order of their groups. Completions are in that of requests."""
        rollouts: dict[int, Rollout] = {}
        for index, place in enumerate(asked.order):
            problem_id, occurrence, sample = asked.keys[place]
            request, completion = asked.requests[index], completions[index]
            rollouts[place] = Rollout(
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
        return [rollouts[place] for place in range(len(rollouts))]

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
class _Asked:
    """The requests for some groups' responses."""

    keys: Sequence[tuple[str, int, int]]  # (problem, occurrence, sample) of each rollout
    requests: Sequence[Request]  # the longest expected first
    order: Sequence[int]  # of each request, the place of its rollout


@dataclass
class _Running:
    """A piece whose responses an engine is generating."""

    name: PieceName
    asked: _Asked
    first: int  # index of its first request, among all that the engine has got
    completions: dict[int, Completion] = field(default_factory=dict)
    slots: int = 0

    @property
    def end(self) -> int:
        return self.first + len(self.asked.requests)

    def put(self, index: int, completion: Completion) -> None:
        self.completions[index - self.first] = completion

    def done(self) -> bool:
        return len(self.completions) == len(self.asked.requests)


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
