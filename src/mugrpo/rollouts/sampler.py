"""Sample shards of rollouts from an engine.

A response without turns is a conversation of one turn, so the loop that samples it also samples
those of an extension, which have several.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.publishing import failpoint
from mugrpo.disk.records import Problem, Rollout
from mugrpo.disk.shards import ShardSet, write_rollouts
from mugrpo.engines.base import Completion, Decoded, Engine, Request
from mugrpo.rollouts.schedule import Draw, rollout_seed

Encode = Callable[[Problem], NDArray[np.int32]]  # returns a problem's prompt ids
Key = tuple[str, int, int]  # problem, occurrence and sample of a rollout
PieceName = tuple[int, int]  # a shard, and the number of the piece of it
Piece = tuple[PieceName, Sequence[Draw]]


class Turns(Protocol):
    """Responses that go on, each known by its number, as requests to an engine."""

    @property
    def going(self) -> int:
        """Number of responses that may ask the engine for another turn."""
        ...

    @property
    def waiting(self) -> int:
        """Number of those that wait for something else than the engine."""
        ...

    def begin(self, number: int, problem: Problem, key: Key, request: Request) -> None:
        """Begin the response `key` to `problem`, with the prompt and the seed of `request`."""
        ...

    def requests(self) -> Sequence[Request]:
        """Return the turns that an engine can begin now; requests are counted in this order."""
        ...

    def take(self, completions: Sequence[tuple[int, Completion]]) -> None:
        """Take what the engine has completed in a step, by the indices of the requests."""
        ...

    def ended(self) -> Sequence[tuple[int, Rollout]]:
        """Return the responses that have ended since the last call."""
        ...


class Dialogue(Protocol):
    """What lets responses of one engine have turns. Only one thread at a time may use it."""

    def turns(
        self,
        *,
        max_new_tokens: int,
        exact: bool,
        temperature: float,
        policy_step: int,
        check: Callable[[], None],
    ) -> Turns:
        """Return responses of at most `max_new_tokens`.

        With an `exact` engine, the same responses have the same bits. Their records hold
        `temperature` and `policy_step`. `check` is called while all wait, and raises if the work is
        to stop.
        """
        ...

    def rewards(self, seed: int, said: Sequence[tuple[Problem, str]]) -> list[float | None]:
        """Return the reward for each text as the only turn of a response to its problem.

        Raises UsageError if a response fails.
        """
        ...

    def close(self) -> None:
        """Forget all responses, and end the processes that answer."""
        ...


@dataclass(frozen=True)
class Sampler:
    """A sampler of groups of rollouts: `group_size` responses to each problem.

    `stage` is the stage's number or "evaluation"; it and `seed` enter the seed of each rollout, see
    `rollout_seed`. `policy_step` is the number of updates that the engine's weights have received.
    `top_p` is for evaluations, see `Engine.generate`. With a `dialogue`, rollouts have turns.
    """

    engine: Engine
    encode: Encode
    _: KW_ONLY
    seed: int
    stage: str
    group_size: int
    temperature: float
    max_new_tokens: int
    policy_step: int
    top_p: float = 1.0
    dialogue: Dialogue | None = None

    def sample(
        self,
        groups: Sequence[Draw],
        on_decoded: Callable[[Decoded], None],
        *,
        longest: int | None = None,
    ) -> Sequence[Rollout]:
        """Return the rollouts of `groups` in order. `on_decoded` is called as responses finish.

        `longest` limits the tokens per response.
        """
        return self._only(groups, on_decoded, longest).rollouts

    def sample_shard(
        self, groups: Sequence[Draw], on_decoded: Callable[[Decoded], None]
    ) -> SampledShard:
        """Return the rollouts of `groups` as a shard, not yet published."""
        failpoint("sampling", self.stage)
        sampled = self._only(groups, on_decoded)
        failpoint("sampled", self.stage)
        return sampled

    def sample_pieces(
        self, take: Callable[[], Piece | None], on_decoded: Callable[[Decoded], None]
    ) -> Iterator[tuple[PieceName, SampledShard]]:
        """Yield (name, sampled shard) for each piece that `take` returns, until it returns None.

        An engine that is not exact gets the requests of the next piece as soon as it has room, so
        that it does not idle while the last responses of the piece before run. An exact one gets
        one piece at a time, so that a piece's bits do not depend on the others.
        """
        if not self.engine.exact:
            yield from self._together(take, on_decoded)
            return
        while (piece := take()) is not None:
            yield piece[0], self.sample_shard(piece[1], on_decoded)

    def _only(self, groups: Sequence[Draw], *how: Any) -> SampledShard:
        pieces: Iterator[Piece | None] = iter([((0, 0), groups), None])
        ((_, sampled),) = self._together(pieces.__next__, *how)
        return sampled

    def _together(
        self,
        take: Callable[[], Piece | None],
        on_decoded: Callable[[Decoded], None],
        longest: int | None = None,
    ) -> Iterator[tuple[PieceName, SampledShard]]:
        """Yield each piece that `take` returns until it returns None. Work on several at a time."""
        longest = min(self.max_new_tokens, longest or self.max_new_tokens)
        turns: Turns = _OneTurn(self.temperature, self.policy_step)
        if self.dialogue is not None:
            turns = self.dialogue.turns(
                max_new_tokens=longest,
                exact=self.engine.exact,
                temperature=self.temperature,
                policy_step=self.policy_step,
                check=lambda: on_decoded(Decoded((), 0)),
            )
        running: list[_Running] = []
        begun = 0

        def begin() -> bool:
            nonlocal begun
            if (piece := take()) is None:
                return False
            name, groups = piece
            first = begun
            for problem, key, request in self._requests(groups):
                turns.begin(begun, problem, key, request)
                begun += 1
            running.append(_Running(name, range(first, begun)))
            return True

        began = time.monotonic()
        try:
            for slots in self._decodings(turns, begin, longest):
                ended = turns.ended()
                for number, rollout in ended:
                    next(p for p in running if number in p.numbers).ended[number] = rollout
                on_decoded(Decoded([(number, _sampled(r)) for number, r in ended], slots))
                if running:
                    running[0].slots += slots
                while running and len(running[0].ended) == len(running[0].numbers):
                    first, now = running.pop(0), time.monotonic()
                    rollouts = [first.ended[number] for number in first.numbers]
                    yield first.name, SampledShard(rollouts, first.slots, now - began)
                    began = now
        finally:
            if turns.going and self.dialogue:
                self.dialogue.close()

    def _decodings(self, turns: Turns, begin: Callable[[], bool], longest: int) -> Iterator[int]:
        """Run conversations to their ends. Yield the slots of each of the engine's steps.

        `begin` begins further conversations and returns whether there were any. It is called if no
        turn waits for the engine, and if not more conversations wait for something else than the
        engine has.
        """

        def batches() -> Iterator[Sequence[Request]]:
            further = True
            while (requests := turns.requests()) or turns.going or further:
                if not requests and further and 2 * turns.waiting <= turns.going:
                    further = begin()
                    requests = turns.requests()
                yield requests

        more = batches()
        for decoded in self.engine.generate(
            next(more),  # all of a piece: an engine makes room for so many
            temperature=self.temperature,
            max_new_tokens=longest,
            top_p=self.top_p,
            more=more,
        ):
            turns.take(decoded.completions)
            yield decoded.slots
        yield 0  # the last replies have come after the last step

    def _requests(self, groups: Sequence[Draw]) -> Iterator[tuple[Problem, Key, Request]]:
        for problem, occurrence in groups:
            prompt_ids = self.encode(problem)
            for sample in range(self.group_size):
                key = (problem.id, occurrence, sample)
                yield problem, key, Request(prompt_ids, rollout_seed(self.seed, self.stage, *key))


class _OneTurn:
    """Responses without turns: the first turn is the last."""

    going = waiting = 0  # none will ask again

    def __init__(self, temperature: float, policy_step: int) -> None:
        self._temperature = temperature
        self._policy_step = policy_step
        self._requests: list[Request] = []  # that the engine has not got yet
        self._asked: dict[int, tuple[Key, Request]] = {}
        self._ended: list[tuple[int, Rollout]] = []

    def begin(self, number: int, problem: Problem, key: Key, request: Request) -> None:
        """Begin the response `number`, which is its request's index: they are all counted."""
        self._requests.append(request)
        self._asked[number] = key, request

    def requests(self) -> Sequence[Request]:
        """See `Turns.requests`."""
        requests, self._requests = self._requests, []
        return requests

    def take(self, completions: Sequence[tuple[int, Completion]]) -> None:
        """See `Turns.take`."""
        for number, completion in completions:
            (problem_id, occurrence, sample), request = self._asked.pop(number)
            rollout = Rollout(
                problem_id=problem_id,
                occurrence=occurrence,
                sample=sample,
                seed=request.seed,
                prompt_ids=request.prompt_ids,
                response_ids=completion.ids,
                behavior_logprobs=completion.logprobs,
                finish_reason=completion.finish_reason,
                temperature=self._temperature,
                policy_step=self._policy_step,
            )
            self._ended.append((number, rollout))

    def ended(self) -> list[tuple[int, Rollout]]:
        """See `Turns.ended`."""
        ended, self._ended = self._ended, []
        return ended


def _sampled(rollout: Rollout) -> Completion:
    """Return what the model sampled in all turns, as progress counts it."""
    ids, logprobs = rollout.response_ids, rollout.behavior_logprobs
    return Completion(ids[rollout.sampled], logprobs[rollout.sampled], rollout.finish_reason)


@dataclass
class _Running:
    """A piece whose conversations go on."""

    name: PieceName
    numbers: range  # of its conversations, in the order of their groups
    ended: dict[int, Rollout] = field(default_factory=dict)  # by number
    slots: int = 0


@dataclass(frozen=True)
class SampledShard:
    """A shard's rollouts, and what sampling them cost."""

    rollouts: Sequence[Rollout]
    slots: int  # token positions computed for them, idle and padded ones included
    seconds: float

    def publish(self, shards: ShardSet, shard: int, **notes: Any) -> None:
        """Publish the rollouts as shard `shard`; its entry gets their cost and `notes`."""
        cost = {"slots": self.slots, "seconds": self.seconds}
        write_rollouts(shards, shard, self.rollouts, **cost, **notes)
