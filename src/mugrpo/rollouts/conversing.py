"""Sample shards of rollouts with turns: an engine and environments at work together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mugrpo.disk.publishing import passing
from mugrpo.disk.records import FinishReason, Problem, Rollout
from mugrpo.engines.base import Completion, Decoded, Engine, Request, StreamingEngine
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.sampler import Draw, Piece, PieceName, SampledShard, Sampler
from mugrpo.rollouts.turns import Conversation, Dialogue, Turns


def make_sampler(
    engine: Engine, encode: PromptEncoder, dialogue: Dialogue | None, **options: Any
) -> Sampler:
    """Return a `Sampler`, or one of rollouts with turns if there is a `dialogue`."""
    if dialogue is None:
        return Sampler(engine, encode, **options)
    return TurnSampler(engine, encode, dialogue, **options)


@dataclass
class _Running:
    """A piece whose conversations go on."""

    name: PieceName
    numbers: Mapping[int, int]  # of its conversations -> the places of their rollouts
    keys: Sequence[tuple[str, int, int]]  # (problem, occurrence, sample) of each place
    conversations: dict[int, Conversation] = field(default_factory=dict)  # ended, by place
    slots: int = 0

    def done(self) -> bool:
        return len(self.conversations) == len(self.keys)


class TurnSampler(Sampler):
    """A sampler of rollouts with turns."""

    def __init__(
        self, engine: Engine, encode: PromptEncoder, dialogue: Dialogue, **options: Any
    ) -> None:
        super().__init__(engine, encode, **options)
        self.dialogue = dialogue

    def sample_pieces(
        self, take: Callable[[], Piece | None], on_decoded: Callable[[Decoded], None]
    ) -> Iterator[tuple[PieceName, SampledShard]]:
        """See `Sampler.sample_pieces`."""
        if self._mixes_pieces:
            yield from self._together(take, on_decoded)
            return
        while (piece := take()) is not None:
            passing("sampling", self.stage)
            yield from self._together(iter([piece, None]).__next__, on_decoded)
            passing("sampled", self.stage)

    def sample_shard(
        self, groups: Sequence[Draw], on_decoded: Callable[[Decoded], None]
    ) -> SampledShard:
        """See `Sampler.sample_shard`."""
        pieces: Iterator[Piece | None] = iter([((0, 0), groups), None])
        ((_, sampled),) = self._together(pieces.__next__, on_decoded)
        return sampled

    def _together(
        self, take: Callable[[], Piece | None], on_decoded: Callable[[Decoded], None]
    ) -> Iterator[tuple[PieceName, SampledShard]]:
        """Yield each piece that `take` returns until it returns None. Work on several at a time."""
        turns = Turns(
            self.dialogue,
            max_new_tokens=self.max_new_tokens,
            exact=not self._mixes_pieces,
            check=lambda: on_decoded(Decoded((), 0)),
        )
        running: list[_Running] = []
        begun = 0

        def begin() -> bool:
            nonlocal begun
            if (piece := take()) is None:
                return False
            name, groups = piece
            asked, problems = self._asked(groups, self.group_size), _by_id(groups)
            numbers = dict(enumerate(asked.order, begun))
            running.append(_Running(name, numbers, asked.keys))
            for (number, place), request in zip(numbers.items(), asked.requests, strict=True):
                turns.begin(number, problems[asked.keys[place][0]], request.seed)
            begun += len(numbers)
            return True

        began = time.monotonic()
        try:
            for slots in self._decodings(turns, begin):
                ended = turns.ended()
                for number, conversation in ended:
                    piece = next(p for p in running if number in p.numbers)
                    piece.conversations[piece.numbers[number]] = conversation
                on_decoded(Decoded([(n, _completion(c)) for n, c in ended], slots))
                if running:
                    running[0].slots += slots
                while running and running[0].done():
                    first, now = running.pop(0), time.monotonic()
                    yield first.name, SampledShard(self._of(first), first.slots, now - began)
                    began = now
        finally:
            if turns.going:  # let the environments forget them
                self.dialogue.environments.close()

    def _decodings(self, turns: Turns, begin: Callable[[], bool]) -> Iterator[int]:
        """Run conversations to their ends. Yield the slots of each of the engine's steps.

        `begin` begins further conversations and returns whether there were any. It is called if no
        turn waits for the engine, and if not more conversations wait for their environments than
        the engine has. An engine that does not stream gets the next turn of all at a time.
        """
        engine, further = self.engine, True
        sampling: dict[str, Any] = {
            "temperature": self.temperature,
            "max_new_tokens": self.max_new_tokens,
            "top_p": self.top_p,
        }

        def more() -> Sequence[Request] | None:
            nonlocal further
            requests = turns.requests()
            if not requests and further and 2 * turns.waiting <= turns.going:
                further = begin()
                requests = turns.requests()
            return requests if requests or turns.going or further else None

        if isinstance(engine, StreamingEngine) and engine.streams:
            for decoded in engine.generate((), more=more, **sampling):
                turns.take(decoded.completions)
                yield decoded.slots
        else:
            first = 0  # index of the first request of a call
            while (requests := more()) is not None:
                for decoded in engine.generate(requests, **sampling) if requests else ():
                    turns.take([(first + index, c) for index, c in decoded.completions])
                    yield decoded.slots
                first += len(requests)
        yield 0  # the last replies have come after the last step

    @property
    def _mixes_pieces(self) -> bool:
        """Whether the engine may work on several pieces at once: one that is not exact anyway."""
        engine = self.engine
        return isinstance(engine, StreamingEngine) and engine.streams and not engine.exact

    def _of(self, piece: _Running) -> list[Rollout]:
        return [
            piece.conversations[place].rollout(key, self.temperature, self.policy_step)
            for place, key in enumerate(piece.keys)
        ]


def _by_id(groups: Sequence[Draw]) -> dict[str, Problem]:
    return {problem.id: problem for problem, _ in groups}


def _completion(conversation: Conversation) -> Completion:
    """Return what the model sampled in a whole conversation, as progress counts it."""
    mask = conversation.sampled
    return Completion(conversation.ids[mask], conversation.logprobs[mask], FinishReason.STOP)
