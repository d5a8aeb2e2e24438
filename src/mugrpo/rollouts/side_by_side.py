"""Sample shards with several engines: each takes the next missing piece as soon as it is free."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, zip_longest
from queue import SimpleQueue

from mugrpo.disk.records import GroupKey, Rollout
from mugrpo.engines.base import Decoded
from mugrpo.rollouts.sampler import Piece, PieceName, SampledShard, Sampler
from mugrpo.rollouts.schedule import Draw

Event = Decoded | tuple[PieceName, SampledShard]


class _Abandoned(Exception):
    """A signal to a sampler to stop: nobody is waiting for its shard any more."""


def sampled_shards(
    samplers: Sequence[Sampler],
    missing: Iterable[tuple[int, Sequence[Draw]]],
    on_decoded: Callable[[Decoded], None],
    *,
    pieces: int = 1,
) -> Iterator[tuple[int, SampledShard]]:
    """Yield (number, sampled shard) for each of the `missing` (number, groups), once it is sampled.

    `missing` is asked for the next one when a sampler is free, in the thread of that sampler.
    Each shard is cut into `pieces`, or into single groups if it has fewer groups than that. This
    gives every sampler work if there are fewer shards than samplers. A single sampler works in this
    thread. Several samplers work in one thread each, and their engines in processes of their own.
    `on_decoded` is called in this thread. If it or a sampler raises, all samplers stop.
    """
    # Why not the longest first? Lengths are guesses: 0.964 of the slots were busy either way.
    sizes: dict[int, int] = {}  # pieces of each shard that is worked on
    sampled: dict[int, dict[int, SampledShard]] = {}

    def work() -> Iterator[Piece]:
        for number, groups in missing:
            cut = [part for part in (groups[i::pieces] for i in range(pieces)) if part]
            sizes[number], sampled[number] = len(cut), {}
            yield from (((number, i), part) for i, part in enumerate(cut))

    for (number, i), piece in _sampled_pieces(samplers, work(), on_decoded):
        sampled[number][i] = piece
        if len(sampled[number]) == sizes[number]:
            yield number, _joined([s for _, s in sorted(sampled.pop(number).items())])


def pieces_of(stage_groups: int, shard_groups: int, engines: int) -> int:
    """Return the number of pieces that each shard is cut into, so that every engine has work.

    It does not depend on the shards that are missing, so a run that was killed cuts its shards in
    the same way.
    """
    return math.ceil(engines / math.ceil(stage_groups / shard_groups))


def _joined(pieces: Sequence[SampledShard]) -> SampledShard:
    """Return the shard that was cut into `pieces`: groups 0, n, 2n, ... are in the first of n."""
    if len(pieces) == 1:
        return pieces[0]
    groups = [[list(g) for _, g in groupby(piece.rollouts, _group)] for piece in pieces]
    in_order = (group for row in zip_longest(*groups, fillvalue=()) for group in row)
    return SampledShard(
        list(chain.from_iterable(in_order)),
        sum(piece.slots for piece in pieces),
        max(piece.seconds for piece in pieces),  # they are sampled side by side
    )


def _group(rollout: Rollout) -> GroupKey:
    return rollout.group


def _sampled_pieces(
    samplers: Sequence[Sampler], work: Iterator[Piece], on_decoded: Callable[[Decoded], None]
) -> Iterator[tuple[PieceName, SampledShard]]:
    if len(samplers) == 1:
        yield from samplers[0].sample_pieces(lambda: next(work, None), on_decoded)
        return
    crew = _Crew(samplers, work)
    try:
        for event in crew.events():
            if isinstance(event, Decoded):
                on_decoded(event)
            else:
                yield event
    finally:
        crew.abandon()


class _Crew:
    """Samplers at work, each in a thread of its own."""

    def __init__(self, samplers: Sequence[Sampler], work: Iterator[Piece]) -> None:
        self._pending, self._taking = work, threading.Lock()
        self._abandoned = threading.Event()
        self._events: SimpleQueue[Event | BaseException | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, args=[s]) for s in samplers]
        for thread in self._threads:
            thread.start()

    def events(self) -> Iterator[Event]:
        """Yield what the samplers decode and finish until all end. Raises what a sampler raises."""
        running = len(self._threads)
        while running:
            event = self._events.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                running -= 1
            else:
                yield event

    def abandon(self) -> None:
        """Stop the samplers as soon as possible, and wait for their threads to end."""
        self._abandoned.set()
        for thread in self._threads:
            thread.join()

    def _work(self, sampler: Sampler) -> None:
        try:
            for sampled in sampler.sample_pieces(self._next, self._tell):
                self._events.put(sampled)
        except _Abandoned:
            pass
        except BaseException as error:
            self._events.put(error)
        self._events.put(None)

    def _next(self) -> Piece | None:
        with self._taking:
            return None if self._abandoned.is_set() else next(self._pending, None)

    def _tell(self, decoded: Decoded) -> None:
        if self._abandoned.is_set():
            raise _Abandoned
        self._events.put(decoded)
