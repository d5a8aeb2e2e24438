"""The rows of a plan's places, which may be in the shards of several stages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.plans import Place
from mugrpo.disk.shards import RowReader, ShardSet
from mugrpo.stages.stage import Stage


class Rows:
    """Reads shards of one kind ("rollouts", "scores" or logprobs) of a stage and of earlier ones.

    It sees the shards of a stage that existed when that stage was first read.
    """

    def __init__(self, stage: Stage, kind: str) -> None:
        self._stage = stage
        self._kind = kind
        self._readers: dict[int, RowReader] = {}
        self._shards: dict[int, ShardSet] = {}

    def shards(self, stage: int) -> ShardSet:
        """Return the shards of a stage."""
        if stage not in self._shards:
            self._shards[stage] = self._stage.earlier(stage).shards(self._kind)
        return self._shards[stage]

    def at(self, places: Iterable[Place]) -> list[dict[str, Any]]:
        """Return the row of each place, in that order: {column: value}.

        Raises RunStopped if a shard is missing or damaged.
        """
        return [self._reader(place).row(place.shard, place.row) for place in places]

    def _reader(self, place: Place) -> RowReader:
        shards, stage = self.shards(place.stage), self._stage.number
        if place.stage != stage and place.shard not in shards:
            raise RunStopped(
                f"{shards.path(place.shard)} is gone, but stage {stage} replays its rollouts; put "
                "it and its manifest back from a copy of the run"
            )
        if place.stage not in self._readers:
            self._readers[place.stage] = RowReader(shards)
        return self._readers[place.stage]
