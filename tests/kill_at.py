"""A mugrpo command that a signal reaches at the N-th pass of a place.

    python -m tests.kill_at "update" 4 train tiny.toml --run-dir run

Places lie between two steps of work or within one; `PLACES` names them. The process says on
stderr where it was reached, so that a test can tell this signal from another end.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Reach = Callable[[], None]


def arm(place: str, nth: int, act: str = "SIGKILL") -> None:
    """Do `act` in this process at the `nth` pass of `place`, counted from 1.

    `act` is a signal's name, or several joined by "+"; or "hold PATH": make the file PATH.held and
    wait for the file PATH.go; or "fill PATH BYTES": fill the disk of PATH but for so many bytes.
    """
    passes = 0

    def reach() -> None:
        nonlocal passes
        passes += 1
        if passes == nth:
            os.write(2, f"{act} at {place}\n".encode())
            _do(act)

    PLACES[place](reach)


def _do(act: str) -> None:
    if act.startswith("hold "):
        path = act.removeprefix("hold ")
        Path(f"{path}.held").touch()
        while not Path(f"{path}.go").exists():
            time.sleep(0.01)
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


def _patch(
    owner: Any,
    name: str,
    reach: Reach,
    *,
    after: bool = False,
    only: Callable[..., bool] = lambda *_: True,
) -> None:
    """Reach before (or after) every call of `owner.name` that `only` accepts."""
    original = getattr(owner, name)

    def patched(*args: Any, **options: Any) -> Any:
        chosen = only(*args)
        if chosen and not after:
            reach()
        result = original(*args, **options)
        if chosen and after:
            reach()
        return result

    setattr(owner, name, patched)


def _publish(pattern: str, *, after: bool, name: str = "replace") -> Callable[[Reach], None]:
    """Before or after the rename that gives a published path its name."""

    def place(reach: Reach) -> None:
        def only(_source: Any, target: Any) -> bool:
            return re.search(pattern, str(target)) is not None

        _patch(os, name, reach, after=after, only=only)

    return place


def _any_publish(*, after: bool) -> Callable[[Reach], None]:
    """Every rename but those of evaluations, and of the metrics file that is cut at a start."""
    others = r"^(?!.*/evaluations/)(?!.*/metrics\.jsonl$)"

    def place(reach: Reach) -> None:
        for name in ("replace", "rename"):
            _publish(others, after=after, name=name)(reach)

    return place


def _half_table(pattern: str) -> Callable[[Reach], None]:
    """With half of a shard's bytes in its file."""

    def place(reach: Reach) -> None:
        import pyarrow.parquet as pq

        original = pq.write_table

        def write_table(table: Any, file: Any, **options: Any) -> None:
            whole = io.BytesIO()
            original(table, whole, **options)
            data = whole.getvalue()
            file.write(data[: len(data) // 2])
            file.flush()
            if re.search(pattern, str(file.name)):
                reach()
            file.write(data[len(data) // 2 :])

        pq.write_table = write_table

    return place


def _half_optimizer(reach: Reach) -> None:
    """With the model and half of the optimizer's bytes in a checkpoint's folder."""
    from mugrpo.optimize import optimizer_state

    original = optimizer_state.save_file

    def save_file(tensors: Any, path: Path) -> None:
        original(tensors, path)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        reach()
        path.write_bytes(whole)

    optimizer_state.save_file = save_file


def _half_metrics_line(reach: Reach) -> None:
    from mugrpo.disk.metrics import MetricsLog

    def append(log: MetricsLog, kind: str, update: int, **values: Any) -> None:
        if kind == "update":
            with open(log._path, "ab") as file:
                file.write(b'{"kind": "update", "upd')
            reach()
            os.truncate(log._path, os.path.getsize(log._path) - 23)
        original(log, kind, update, **values)

    original = MetricsLog.append
    MetricsLog.append = append  # type: ignore[method-assign]


def _engine_batch(reach: Reach) -> None:
    """Before a batch of a stage's shard; the canary's and evaluations' do not count."""
    from mugrpo.engines.hf import HFEngine
    from mugrpo.rollouts.sampler import Sampler

    stage = ""
    made = Sampler.made

    def noted(sampler: Sampler, *args: Any) -> Any:
        nonlocal stage
        stage = sampler.stage
        shard = made(sampler, *args)
        stage = ""
        return shard

    Sampler.made = noted  # type: ignore[method-assign]
    _patch(HFEngine, "_batch", reach, only=lambda *_: stage.isdigit())


def _call(module: str, name: str, **options: Any) -> Callable[[Reach], None]:
    """Before (after) a call of `module.name`, or of a class's method "Class.name"."""

    def place(reach: Reach) -> None:
        import importlib

        owner = importlib.import_module(module)
        *classes, leaf = name.split(".")
        for part in classes:
            owner = getattr(owner, part)
        _patch(owner, leaf, reach, **options)

    return place


def _removal(pattern: str) -> Callable[[Reach], None]:
    """Before a folder's removal; a publish of a folder begins with one, too."""

    def place(reach: Reach) -> None:
        _patch(shutil, "rmtree", reach, only=lambda p, *_: re.search(pattern, str(p)) is not None)

    return place


_EVALUATION = r"/evaluations/update-\d+$"

PLACES: dict[str, Callable[[Reach], None]] = {
    "config": _publish(r"/config\.json$", after=False),
    "config stored": _publish(r"/config\.json$", after=True),
    "engine batch": _engine_batch,
    "canary": _call("mugrpo.optimize.trainer", "Trainer.logprob_gap"),
    "half a rollout shard": _half_table(r"/stages/\d+/rollouts/"),
    "rollout shard without manifest": _publish(r"/stages/\d+/rollouts/shard", after=True),
    "manifest of rollouts": _publish(r"/stages/\d+/rollouts/manifest", after=False),
    "scoring": _call("mugrpo.rollouts.score", "Scorer._answer"),
    "half a score shard": _half_table(r"/stages/\d+/scores/"),
    "score shard without manifest": _publish(r"/stages/\d+/scores/shard", after=True),
    "half a logprobs shard": _half_table(r"/stages/\d+/\w+_logprobs/"),
    "logprobs shard without manifest": _publish(r"_logprobs/shard", after=True),
    "plan without manifest": _publish(r"/plan/shard", after=True),
    "gradient": _call("torch.nn.utils", "clip_grad_norm_"),
    "optimizer step": _call("torch.optim", "AdamW.step", after=True),
    "half a metrics line": _half_metrics_line,
    "metrics line": _call("mugrpo.disk.metrics", "MetricsLog.append", after=True),
    "half a checkpoint": _half_optimizer,
    "checkpoint without name": _publish(r"/checkpoints/update-\d+$", after=False, name="rename"),
    "checkpoint": _publish(r"/checkpoints/update-\d+$", after=True, name="rename"),
    "old checkpoint": _removal(r"/checkpoints/update-\d+\.tmp\.\d+$"),
    "stage": _call("mugrpo.stages.generate", "generate_stage"),
    "half an evaluation": _call("mugrpo.stages.evaluate", "_generate", after=True),
    "evaluation without metrics line": _call("mugrpo.stages.evaluate", "evaluate", after=True),
    "evaluation before its place": _publish(_EVALUATION, after=False, name="rename"),
    "evaluation in its place": _publish(_EVALUATION, after=True, name="rename"),
    "cut metrics": _publish(r"/metrics\.jsonl$", after=False),
    "removal of unfinished": _call("mugrpo.disk.run_dir", "remove_unfinished"),
    "before a publish": _any_publish(after=False),
    "after a publish": _any_publish(after=True),
}


def main(arguments: list[str]) -> int:
    place, nth, *command = arguments
    arm(place, int(nth))
    from mugrpo.cli import main as mugrpo

    return mugrpo(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
