"""Orders from a run to its ranks, and their answers: files in the run's folder.

    ranks/order.json    {"number": 3, "task": "optimize", "stage": 1, "update": 96}
    ranks/rollouts/     rollouts whose logprobs are ordered
    ranks/logprobs/     these logprobs
    ranks/done.json     {"number": 3, ...}: what came of it

The first rank reads the order, passes it on to the others, and answers when all are done. So a
folder on a network is asked by one process, however many ranks there are. There is one order at a
time. Ranks that start late, or again, find it too. None of this outlives the ranks, so nobody waits
for the disk, which may be busy with their checkpoint. Why not a socket? Ranks that a cluster starts
share nothing with the run but its folder.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.publishing import publish_json, without_fsync
from mugrpo.disk.records import Rollout
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import (
    ShardSet,
    read_logprobs,
    read_rollouts,
    write_logprobs,
    write_rollouts,
)
from mugrpo.run.opening import OpenRun

TICK = 0.02  # seconds between two looks at an order or an answer
_PULSE = 1.0  # seconds after which the first rank tells the others that there is no order yet

OrderTask = Literal["load", "optimize", "logprobs", "end"]


@dataclass(frozen=True)
class Order:
    """What the ranks are to do: make a stage's updates up to `update`, compute logprobs, or end.

    Logprobs are those of the policy after `update` updates. "load" is done once they have loaded
    the model.
    """

    number: int
    task: OrderTask
    update: int = 0
    stage: int = 0
    waits: bool = False  # for shards that still arrive


@dataclass(frozen=True)
class RankAnswer:
    """What the first rank says when an order is done."""

    number: int
    update: int = 0  # the number of updates made
    saved: bool = True  # whether a checkpoint holds them
    checkpoint: str = ""  # where it is being written; empty if it is published
    model: str = ""  # a folder with these weights alone, for engines; empty if there is none


def give(folder: RunDir, order: Order, rollouts: Sequence[Rollout] = ()) -> None:
    """Give an order to the ranks, with the `rollouts` whose logprobs it asks for."""
    with without_fsync():
        if rollouts:
            write_rollouts(ShardSet(folder.ranks / "rollouts", "rollouts"), 0, rollouts)
        publish_json(folder.ranks / "order.json", asdict(order))


def answer_to(folder: RunDir, order: Order) -> RankAnswer | None:
    """Return the ranks' answer to `order`, or None if they have not answered yet."""
    answer = _last_answer(folder)
    return answer if answer.number == order.number else None


def answered_logprobs(folder: RunDir) -> list[NDArray[np.float32]]:
    """Return the logprobs that the ranks have computed last."""
    return read_logprobs(_logprobs(folder), 0)


def orders(run: OpenRun) -> Iterator[Order]:
    """Yield the orders that this rank gets, until it is told to end.

    All ranks get the same orders, and an order counts as done when all of them ask for the next.
    Raises Interrupted if the run must stop.
    """
    done = _last_answer(run.folder).number if run.ranks.first else 0
    while True:
        while not (heard := run.ranks.from_first(_heard(run, done) if run.ranks.first else None)):
            if run.stop.signal_name:
                run.folder.stop_request.touch()  # the first rank must not wait on
            run.folder.settle(wait=False)  # raises if a checkpoint could not be written
        run.check()
        order = Order(**heard)
        if order.task == "end":
            return
        yield order
        run.ranks.wait()
        done = order.number
        if run.ranks.first:
            with without_fsync():
                publish_json(run.folder.ranks / "done.json", asdict(_answer(run.folder, done)))


def _heard(run: OpenRun, done: int) -> dict[str, Any]:
    """Return what the first rank passes on: the order after number `done`, or nothing yet.

    If the run must stop, that is whatever order there is: the ranks then stop together. The others
    wait in a message of the first rank's, where no signal reaches them, so it does not wait long.
    """
    until = time.monotonic() + _PULSE
    while (order := _read(run.folder)) is None or order.number == done:
        if run.stop.signal_name:
            run.folder.stop_request.touch()
        if run.folder.stop_request.exists():
            return asdict(Order(done, "end"))
        run.folder.settle(wait=False)
        if time.monotonic() >= until:
            return {}
        time.sleep(TICK)
    return asdict(order)


def ordered_rollouts(folder: RunDir) -> list[Rollout]:
    """Return the rollouts whose logprobs are ordered."""
    return list(read_rollouts(ShardSet(folder.ranks / "rollouts", "rollouts"), 0))


def answer_logprobs(folder: RunDir, logprobs: Sequence[NDArray[np.float32]]) -> None:
    """Answer with the logprobs [T] of each ordered rollout."""
    with without_fsync():
        write_logprobs(_logprobs(folder), 0, logprobs)


def _logprobs(folder: RunDir) -> ShardSet:
    return ShardSet(folder.ranks / "logprobs", "logprobs")


def _read(folder: RunDir) -> Order | None:
    path = folder.ranks / "order.json"
    return Order(**json.loads(path.read_text())) if path.exists() else None


def _answer(folder: RunDir, number: int) -> RankAnswer:
    update = folder.newest_update()
    unread = [folder.pending, folder.handover]
    where = [str(one.folder) if one and one.update == update else "" for one in unread]
    saved = folder.saved_update() == update
    return RankAnswer(number, update, saved, *where)


def _last_answer(folder: RunDir) -> RankAnswer:
    path = folder.ranks / "done.json"
    if not path.exists():
        return RankAnswer(0)
    return RankAnswer(**json.loads(path.read_text()))
