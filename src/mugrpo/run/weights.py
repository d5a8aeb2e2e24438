"""Where a run's weights lie, and how engines in processes of their own are handed them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.publishing import publish_folder, sealed_folder_fault
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.policy import Policy, model_path

_NOT_THE_MODEL = ("optimizer", "trainer.json", "stages.json", "sha256.json")


def weights_at(run_dir: RunDir, model: ModelOptions, update: int) -> str:
    """The model directory (or hub id) of the weights after `update` updates.

    Raises UsageError where no update has come so far, RunStopped where its checkpoint is gone or
    damaged.
    """
    if update == 0:
        return model_path(model)
    folder, made = run_dir.checkpoint(update), run_dir.checkpoint_updates()
    if update > max(made, default=0):
        raise UsageError(
            f"{folder} is not made yet: optimize the stages before (`mugrpo train` does all)"
        )
    if update not in made:
        raise RunStopped(
            f"{folder} is needed, but gone; remove the checkpoints after it, and the run goes "
            "on from an earlier one"
        )
    if fault := sealed_folder_fault(folder):
        raise RunStopped(f"{folder} {fault}; `mugrpo repair {run_dir.root}` sets it aside")
    return str(folder)


def hand_over(run_dir: RunDir, model: ModelOptions, policy: Policy) -> str:
    """A model directory (or hub id) of the policy's weights as they are now, and nothing else.

    An engine may read every file of weights that it finds: a checkpoint's optimizer is none of the
    model. So its model is linked to; where there is no checkpoint the weights are written.
    """
    update = policy.update
    if update == 0:
        return model_path(model)
    folder = run_dir.handed_over(update)
    shutil.rmtree(folder.parent, ignore_errors=True)  # those of other updates
    with publish_folder(folder) as unfinished:
        if update in run_dir.checkpoint_updates():
            _link_model(Path(weights_at(run_dir, model, update)), unfinished)
        else:
            policy.save(unfinished)
    return str(folder.absolute())


def _link_model(checkpoint: Path, folder: Path) -> None:
    for file in checkpoint.iterdir():
        if not file.name.startswith(_NOT_THE_MODEL):
            os.symlink(os.path.abspath(file), folder / file.name)
