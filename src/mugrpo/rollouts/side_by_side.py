"""Sample shards with several engines: each takes the next missing shard as soon as it is free."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import SimpleQueue

from mugrpo.engines.base import Decoded
from mugrpo.rollouts.sampler import Draw, SampledShard, Sampler

Wanted = tuple[int, Sequence[Draw]]  # a missing shard: its number and its groups
Event = Decoded | tuple[int, SampledShard]


class _Abandoned(Exception):
    """A signal to a sampler to stop: nobody is waiting for its shard any more."""


def sampled_shards(
    samplers: Sequence[Sampler],
    missing: Sequence[Wanted],
    on_decoded: Callable[[Decoded], None],
) -> Iterator[tuple[int, SampledShard]]:
    """Yield (number, sampled shard) for each of `missing`, as soon as it is sampled.

    A single sampler works in this thread. Several samplers work in one thread each, and their
    engines in processes of their own. `on_decoded` is called in this thread. If it or a sampler
    raises, all samplers stop.
    """
    if len(samplers) == 1:
        for number, groups in missing:
            yield number, samplers[0].sample_shard(groups, on_decoded)
        return
    crew = _Crew(samplers, missing)
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

    def __init__(self, samplers: Sequence[Sampler], missing: Sequence[Wanted]) -> None:
        self._pending = deque(missing)
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
            while (shard := self._next()) is not None:
                self._events.put((shard[0], sampler.sample_shard(shard[1], self._tell)))
        except _Abandoned:
            pass
        except BaseException as error:
            self._events.put(error)
        self._events.put(None)

    def _next(self) -> Wanted | None:
        with suppress(IndexError):
            return None if self._abandoned.is_set() else self._pending.popleft()
        return None

    def _tell(self, decoded: Decoded) -> None:
        if self._abandoned.is_set():
            raise _Abandoned
        self._events.put(decoded)
