"""Checkpoints: written beside training, sealed with checksums, published atomically; old ones go.

A snapshot is taken at once. A thread of each rank writes its part of it:

    model files, which engines may read now -> optimizer's state, config -> checksums -> rename

The ranks meet in the unfinished folder. Each leaves its checksums there at the end, and the first
rank seals. No file is opened by two of them. A kill meanwhile leaves the checkpoint before.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread, get_native_id
from typing import Any

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.publishing import (
    failpoint,
    full_disk_explained,
    publish_folder,
    publish_json,
    seal_folder,
    unfinished,
    writer,
)
from mugrpo.disk.run_dir import RunDir
from mugrpo.optimize.trainer import Snapshot, Trainer

_PRIORITY = 10  # of the thread that writes; 0 is normal, 19 the lowest
_TICK = 0.01  # least seconds between two looks for what another rank writes
_RARELY = 1.0  # most seconds between them


def save_checkpoint(
    trainer: Trainer,
    run_dir: RunDir,
    *,
    keep: int,
    needed: Collection[int],
    temporary: bool,
    sleeps: bool,
) -> None:
    """Begin to write the trainer's checkpoint; `run_dir.pending` is how far it has got.

    Once it is published, all but the newest `keep` and the `needed` are removed. `needed` lists
    checkpoints by their update. If `keep` is 0, only `temporary` ones are removed. It has a copy of
    config.json, from which `repair` restores that. If the trainer `sleeps`, it does so after it.
    Waits for the checkpoint before. Raises what ended its writing, and RunStopped, naming the last
    good checkpoint, if a weight is not finite.
    """
    ranks = trainer.policy.ranks
    run_dir.settle()
    require_finite(trainer, run_dir)  # on the GPU, where it takes no time
    run_dir.pending = Writing(
        trainer.snapshot(sleeps=sleeps),
        run_dir.checkpoint(trainer.update),
        {"temporary": temporary, "config": _stored(run_dir.config)},
        first=ranks.from_first(writer()),
        then=lambda: _remove_old(run_dir, keep, needed),
    )


def require_finite(trainer: Trainer, run_dir: RunDir) -> None:
    """Raise RunStopped, naming the last good checkpoint, if a weight is not finite.

    Ranks that share the policy must all call this.
    """
    policy = trainer.policy
    if name := next(filter(None, policy.ranks.all(policy.nonfinite_parameter())), None):
        saved = run_dir.checkpoint_updates()
        last = run_dir.checkpoint(saved[-1]) if saved else "the initial model"
        raise RunStopped(
            f"the checkpoint of update {trainer.update} is not written, because {name} contains "
            f"NaN or inf; the last good one is {last}"
        )


class Writing:
    """A checkpoint that a thread writes; the `Pending` of a run."""

    def __init__(
        self,
        snapshot: Snapshot,
        path: Path,
        stages: Mapping[str, Any],
        *,
        first: str,
        then: Callable[[], None],
    ) -> None:
        """Start the thread. The first rank publishes `path`, then calls `then`.

        `stages` is the content of stages.json.
        """
        self.update = snapshot.state["update"]
        self.folder = unfinished(path, first)
        self._path, self._stages, self._then = path, stages, then
        self._ready, self._done = Event(), Future[None]()
        self._thread = Thread(target=self._run, args=[snapshot], daemon=True)
        self._thread.start()

    def ready(self) -> None:
        self._ready.wait()
        if self._done.done():
            self._done.result()

    def published(self, *, wait: bool) -> bool:
        if not wait and not self._done.done():
            return False
        self._thread.join()  # as freeing tensors while Python ends aborts the process
        self._done.result()
        return True

    def _run(self, snapshot: Snapshot) -> None:
        if sys.platform.startswith("linux"):  # updates and engines need the cores more urgently
            os.setpriority(os.PRIO_PROCESS, get_native_id(), _PRIORITY)
        try:
            if snapshot.policy.ranks.first:
                self._write(snapshot)
                self._then()
            else:
                with full_disk_explained(self._path):
                    self._write_part(snapshot)
            self._done.set_result(None)
        except BaseException as error:
            self._done.set_exception(error)
        finally:
            self._ready.set()

    def _write(self, snapshot: Snapshot) -> None:
        """Write the first rank's part, and publish the checkpoint when all parts are there."""
        with publish_folder(self._path) as folder:
            sums = self._files(snapshot)
            size = snapshot.policy.ranks.size
            parts = [folder / _part(rank) for rank in range(1, size)]
            self._wait_for(parts)
            for part in parts:
                sums |= json.loads(part.read_text())
                part.unlink()
            (folder / "stages.json").write_text(json.dumps(self._stages) + "\n")
            seal_folder(folder, sums)

    def _write_part(self, snapshot: Snapshot) -> None:
        """Write another rank's part, and wait until the checkpoint is published."""
        self._wait(self.folder.exists)
        publish_json(self.folder / _part(snapshot.policy.ranks.rank), self._files(snapshot))
        self._wait(lambda: not self.folder.exists())
        if not self._path.exists():
            raise self._unpublished()

    def _files(self, snapshot: Snapshot) -> dict[str, str]:
        """Write this rank's part. Return the checksums that are known from writing."""
        sums = snapshot.write_model(self.folder)
        self._ready.set()
        return sums | snapshot.write_rest(self.folder)

    def _wait_for(self, files: Sequence[Path]) -> None:
        """Wait for what other ranks write into the unfinished folder."""
        left = list(files)

        def written() -> bool:
            while left and left[-1].exists():
                left.pop()
            if left and not self.folder.exists():
                raise self._unpublished()
            return not left

        self._wait(written)

    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait for other ranks. Without a limit: if one ends, its starter ends the others."""
        began = time.monotonic()
        while not done():
            waited = time.monotonic() - began
            time.sleep(min(max(_TICK, waited / 20), _RARELY))  # ranks are many, and the folder one

    def _unpublished(self) -> RunStopped:
        return RunStopped(f"the first rank could not publish {self._path}")


def _stored(config: Path) -> dict[str, Any] | None:
    """Return a run's config.json, or None if there is none: rollouts from elsewhere."""
    return dict(json.loads(config.read_bytes())) if config.exists() else None


def _part(rank: int) -> str:
    return f"part-{rank + 1:05d}.json"


def _remove_old(run_dir: RunDir, keep: int, needed: Collection[int]) -> None:
    """Remove all but the newest `keep` and the `needed`, and all temporary ones but the newest.

    If `keep` is 0, remove only temporary ones.
    """
    *old, newest = run_dir.checkpoint_updates()
    lasting = [update for update in (*old, newest) if not run_dir.is_temporary(update)]
    kept = {newest, *needed, *lasting[-keep:]}  # lasting[-0:] is all of them
    for update in old:
        folder = run_dir.checkpoint(update)
        if update not in kept:
            os.rename(folder, unfinished(folder))  # a kill leaves no partial one under its name
            failpoint("old checkpoint")
            shutil.rmtree(unfinished(folder))
