"""Run a mugrpo command and send it a signal at the N-th pass of a place.

    python -m tests.kill_at "gradient" 4 train tiny.toml --run-dir run

A place is between two steps of work or within one; `PLACES` lists them. The process reports the
place on stderr, so that a test can tell this signal from any other end.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugrpo.disk.publishing import unfinished, watchers

Reach = Callable[[AbstractContextManager[None]], None]


def arm(place: str, nth: int, act: str = "SIGKILL") -> None:
    """Do `act` in this process at the `nth` pass of `place`, counted from 1. `act` is a signal's
    name, or several joined by "+"; or "hold PATH": create the file PATH.held and wait for the file
    PATH.go; or "sleep SECONDS"; or "fill PATH BYTES": fill the disk of PATH except for BYTES."""
    passes = 0

    def reach(halved: AbstractContextManager[None]) -> None:
        nonlocal passes
        passes += 1
        if passes == nth:
            with halved:
                os.write(2, f"{act} at {place}\n".encode())
                _do(act)

    PLACES[place].watch(reach)


def settle_checkpoints() -> None:
    """From now on, wait for every checkpoint before training goes on."""
    from mugrpo.hosts import local

    begin = local.save_checkpoint

    def save(trainer: Any, run_dir: Any, **how: Any) -> None:
        begin(trainer, run_dir, **how)
        run_dir.settle()

    local.save_checkpoint = save


def _do(act: str) -> None:
    if act.startswith("hold "):
        path = act.removeprefix("hold ")
        Path(f"{path}.held").touch()
        while not Path(f"{path}.go").exists():
            time.sleep(0.01)
    elif act.startswith("sleep "):
        time.sleep(float(act.removeprefix("sleep ")))
    elif act.startswith("fill "):
        _, path, spare = act.split(" ")
        fill_disk(Path(path), int(spare))
    else:
        for name in act.split("+"):
            os.kill(os.getpid(), signal.Signals[name])


def fill_disk(path: Path, spare: int) -> None:
    """Let the file `path` grow until its disk has `spare` bytes left."""
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(os.path.getsize(path) - spare)


@dataclass
class Place:
    """A point that the code declares (mugrpo.disk.publishing), only for paths that match `about`.
    `halved` cuts what is there in half while the signal is sent, and restores it afterwards."""

    point: str
    about: str = ""  # a regular expression
    halved: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()

    def watch(self, reach: Reach) -> None:
        def watcher(point: str, what: str) -> None:
            if point == self.point and re.search(self.about, what):
                reach(self.halved(what))

        watchers.append(watcher)


class EngineBatch(Place):
    """The point before an engine batch of a stage's shard, not of the canary or an evaluation."""

    def watch(self, reach: Reach) -> None:
        stage = ""

        def watcher(point: str, what: str) -> None:
            nonlocal stage
            if point in ("sampling", "sampled"):
                stage = what if point == "sampling" else ""
            elif point == self.point and stage.isdigit():
                reach(nullcontext())

        watchers.append(watcher)


def _unfinished(path: str) -> Path:
    return unfinished(Path(path))


@contextmanager
def _cut_in_half(file: Path) -> Iterator[None]:
    whole = file.read_bytes()
    os.truncate(file, len(whole) // 2)
    yield
    file.write_bytes(whole)


def _half_a_file(path: str) -> AbstractContextManager[None]:
    """Cut the file that is about to become `path` in half."""
    return _cut_in_half(_unfinished(path))


@contextmanager
def _half_a_checkpoint(path: str) -> Iterator[None]:
    """Leave the model and half of the optimizer's bytes in the checkpoint's folder, unsealed."""
    (optimizer,) = _unfinished(path).glob("optimizer*")
    seal = _unfinished(path) / "sha256.json"
    sums = seal.read_bytes()
    seal.unlink()
    with _cut_in_half(optimizer):
        yield
    seal.write_bytes(sums)


@contextmanager
def _half_a_line(path: str) -> Iterator[None]:
    with open(path, "ab") as file:
        file.write(b'{"kind": "update", "upd')
    yield
    os.truncate(path, os.path.getsize(path) - 23)


_SHARDS = r"/stages/\d+/{}/shard-\d+\.parquet"
_CHECKPOINT = r"/checkpoints/update-\d+$"
_EVALUATION = r"/evaluations/update-\d+$"
_OTHERS = r"^(?!.*/evaluations/)(?!.*/metrics\.jsonl$)"  # a start repeats and cuts those

BEFORE, AFTER = "before a publish", "after a publish"

PLACES: dict[str, Place] = {
    "config": Place(BEFORE, r"/config\.json$"),
    "config stored": Place(AFTER, r"/config\.json$"),
    "engine batch": EngineBatch("engine batch"),
    "canary": Place("canary"),
    "half a rollout shard": Place(BEFORE, _SHARDS.format("rollouts"), _half_a_file),
    "rollout shard without entry": Place(AFTER, _SHARDS.format("rollouts")),
    "entry of rollouts": Place(BEFORE, r"/stages/\d+/rollouts/shard-\d+\.json"),
    "scoring": Place("scoring"),
    "half a score shard": Place(BEFORE, _SHARDS.format("scores"), _half_a_file),
    "score shard without entry": Place(AFTER, _SHARDS.format("scores")),
    "half a logprobs shard": Place(BEFORE, _SHARDS.format(r"\w+_logprobs"), _half_a_file),
    "logprobs shard without entry": Place(AFTER, _SHARDS.format(r"\w+_logprobs")),
    "gradient": Place("gradient"),
    "optimizer step": Place("optimizer step"),
    "half a metrics line": Place("before a line of update", "", _half_a_line),
    "metrics line": Place("metrics line"),
    "before a refresh line": Place("before a line of refresh"),
    "half a checkpoint": Place(BEFORE, _CHECKPOINT, _half_a_checkpoint),
    "checkpoint without name": Place(BEFORE, _CHECKPOINT),
    "checkpoint": Place(AFTER, _CHECKPOINT),
    "old checkpoint": Place("old checkpoint"),
    "stage": Place("stage"),
    "evaluation sampled": Place("evaluation sampled"),
    "evaluation scored": Place("evaluation scored"),
    "evaluation without metrics line": Place("evaluation without metrics line"),
    "suite without metrics line": Place("suite without metrics line"),
    "evaluation before its place": Place(BEFORE, _EVALUATION),
    "evaluation in its place": Place(AFTER, _EVALUATION),
    "cut metrics": Place(BEFORE, r"/metrics\.jsonl$"),
    "removal of unfinished": Place("removal of unfinished"),
    BEFORE: Place(BEFORE, _OTHERS),
    AFTER: Place(AFTER, _OTHERS),
}


def main(arguments: list[str]) -> int:
    place, nth, *command = arguments
    arm(place, int(nth))
    from mugrpo.cli import main as mugrpo

    return mugrpo(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
