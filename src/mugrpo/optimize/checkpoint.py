"""Checkpoints: published whole, sealed with checksums, the oldest removed when asked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.places import passing
from mugrpo.disk.publishing import full_disk_explained, publish_folder, seal_folder
from mugrpo.disk.run_dir import RunDir
from mugrpo.optimize.trainer import Trainer
from mugrpo.processes.ranks import Ranks


def save_checkpoint(
    trainer: Trainer,
    run_dir: RunDir,
    *,
    starts: Sequence[int],
    keep: int,
    needed: Collection[int],
) -> None:
    """Publish the trainer's checkpoint, then keep the newest `keep` (0: all) and the `needed`.

    `starts` says where stages began that ended early, see `schedule`: what comes after this
    checkpoint is begun from it, whatever came of that before.
    Raises RunStopped, naming the last good one, where a weight is not finite.
    """
    ranks = trainer.policy.ranks
    if name := next(filter(None, ranks.all(trainer.policy.nonfinite_parameter())), None):
        saved = run_dir.checkpoint_updates()
        last = run_dir.checkpoint(saved[-1]) if saved else "the initial model"
        raise RunStopped(
            f"no checkpoint of update {trainer.update} is written: {name} holds NaN or inf; the "
            f"last good one is {last}"
        )
    with _published_by_the_first(run_dir.checkpoint(trainer.update), ranks) as folder:
        trainer.save(folder)
        ranks.wait()
        if ranks.first:
            (folder / "stages.json").write_text(json.dumps({"starts": list(starts)}) + "\n")
            seal_folder(folder)
    updates = run_dir.checkpoint_updates() if ranks.first else []
    for update in updates[:-keep] if keep else []:
        if update not in needed:
            folder = run_dir.checkpoint(update)
            doomed = folder.with_name(f"{folder.name}.tmp.{os.getpid()}")
            os.rename(folder, doomed)  # so that a kill leaves no half checkpoint under its name
            passing("old checkpoint")
            shutil.rmtree(doomed)


@contextmanager
def _published_by_the_first(path: Path, ranks: Ranks) -> Iterator[Path]:
    """A folder that all ranks write into; the first publishes it, and then all go on."""
    if ranks.first:
        with publish_folder(path) as folder:
            ranks.all(str(folder))
            yield folder
    else:
        with full_disk_explained(path):
            yield Path(ranks.all("")[0])
    ranks.wait()
