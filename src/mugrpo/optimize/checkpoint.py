"""Publish checkpoints atomically, sealed with checksums, and remove old ones."""

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
    """Publish the trainer's checkpoint, then remove all but the newest `keep` and the `needed`.

    `needed` lists checkpoints by their update. If `keep` is 0, none is removed. `starts` is
    `Schedule.starts`, stored for a run that is resumed from this checkpoint: it says where the
    stages began. Raises RunStopped, naming the last good checkpoint, if a weight is not finite.
    """
    ranks = trainer.policy.ranks
    if name := next(filter(None, ranks.all(trainer.policy.nonfinite_parameter())), None):
        saved = run_dir.checkpoint_updates()
        last = run_dir.checkpoint(saved[-1]) if saved else "the initial model"
        raise RunStopped(
            f"the checkpoint of update {trainer.update} is not written, because {name} contains "
            f"NaN or inf; the last good one is {last}"
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
            unfinished = folder.with_name(f"{folder.name}.tmp.{os.getpid()}")
            os.rename(folder, unfinished)  # a kill leaves no partial checkpoint under its name
            passing("old checkpoint")
            shutil.rmtree(unfinished)


@contextmanager
def _published_by_the_first(path: Path, ranks: Ranks) -> Iterator[Path]:
    """Yield a folder that all ranks write into. The first rank publishes it; the others wait."""
    if ranks.first:
        with publish_folder(path) as folder:
            ranks.all(str(folder))
            yield folder
    else:
        with full_disk_explained(path):
            yield Path(ranks.all("")[0])
    ranks.wait()
