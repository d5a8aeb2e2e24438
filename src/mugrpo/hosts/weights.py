"""The weights of a run's policy: on disk by update, and in this process once loaded."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.publishing import (
    SUMS,
    publish_folder,
    publish_once,
    read_checked,
    sealed_folder_fault,
    with_checksum,
    without_fsync,
)
from mugrpo.disk.records import Rollout
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.hardware import precision_of
from mugrpo.model.memory import give_back_memory, out_of_memory_explained
from mugrpo.model.policy import Policy, load_policy
from mugrpo.model.pretrained import model_fingerprint, model_path
from mugrpo.optimize.budget import TokenBudget
from mugrpo.optimize.forward import rollout_logprobs, shares_prompts
from mugrpo.optimize.fsdp import distribute
from mugrpo.processes.ranks import ALONE, Ranks
from mugrpo.rollouts.prompts import read_template
from mugrpo.run.opening import OpenRun

_NOT_THE_MODEL = ("optimizer", "trainer.json", "stages.json", "sha256.json", "part-")


class Weights:
    """The policy's weights after any update that has a checkpoint.

    Nothing is loaded until a method needs it. `policy` is the model that is trained, and that an
    engine in this process samples from.
    """

    def __init__(self, run: OpenRun) -> None:
        notify = run.progress.say
        self.policy: Policy | None = None
        self.budget = TokenBudget(run.config.optimizer, notify, run.ranks.size)
        self._frozen: Policy | None = None
        self._folder = run.folder
        self._config = run.config
        self._ranks = run.ranks
        self._notify = notify
        self._check = run.check

    def load(self) -> Policy:
        """Return the policy in this process. Load the initial model if no policy is loaded yet.

        Raises UsageError if the model has a weight that is not finite.
        """
        if self.policy is None:
            policy = self._loaded(notify=self._notify, ranks=self._ranks)
            if self._ranks.size > 1:
                distribute(policy)
            found = self._ranks.all(policy.nonfinite_parameter())
            if name := next(filter(None, found), None):
                path = model_path(self._config.model)
                raise UsageError(
                    f"{name} of the model {path} contains NaN or inf; download it again"
                )
            self.policy = policy
        return self.policy

    def at(self, update: int) -> Policy:
        """Return the policy with the weights after `update` updates.

        Raises UsageError if the run has not reached this update yet, RunStopped if its checkpoint
        is gone or damaged.
        """
        policy = self.load()
        if policy.update != update:
            policy.load_weights(self.path(update), update)
        return policy

    def path(self, update: int) -> str:
        """Return the checkpoint (or model) that holds the weights after `update` updates.

        Several ranks must all call this: each verifies a part of the checkpoint's files.
        """
        return weights_at(self._folder, self._config.model, update, self._ranks)

    def hand_over(self, update: int) -> str:
        """Return what `hand_over` does, of the policy in this process if it has these weights."""
        policy = self.policy if self.policy and self.policy.update == update else None
        return hand_over(self._folder, self._config, policy, update)

    def logprobs(self, update: int, rollouts: Sequence[Rollout]) -> list[NDArray[np.float32]]:
        """Return the logprobs [T] of each rollout's response after `update` updates.

        The policy of a process that is alone stays as it is: if it has other weights, a second
        model is loaded. Ranks load the weights into the policy that they share.
        """
        policy = self._frozen_at(update)
        policy.wake()
        return rollout_logprobs(policy, rollouts, self._config, self.budget, self._check)

    def logprobs_for_engines(
        self, update: int, rollouts: Sequence[Rollout]
    ) -> list[NDArray[np.float32]]:
        """Return what `logprobs` returns, while engines have the machine.

        If this process has no model, it loads one, and drops it: the engines may need the memory.
        Raises RunStopped if memory runs out.
        """
        remedy = "leave more memory for it beside the engine"
        try:
            with out_of_memory_explained("the trainer's model", remedy):
                return self.logprobs(update, rollouts)
        finally:
            if self.policy is None:
                self.close()

    def sleep(self) -> None:
        """Move all models to host memory, if the config lets them leave the GPU to engines."""
        for policy in (self.policy, self._frozen) if self._config.shares_gpus else ():
            if policy is not None:
                policy.sleep()

    def close(self) -> None:
        """Drop all models, to leave their memory to other processes."""
        self.policy = self._frozen = None
        give_back_memory()

    def _loaded(self, **options: Any) -> Policy:
        """Return the initial policy, from the model's files.

        The frozen one notifies nobody: the policy that trains has said the same already.
        """
        config = self._config
        policy = load_policy(config.model, lora=config.lora, seed=config.seed, **options)
        if (template := config.prompt.chat_template) is not None:  # checkpoints have it
            policy.tokenizer.chat_template = read_template(template)
        policy.waking_remedy = config.engine.loading_remedy
        return policy

    def _frozen_at(self, update: int) -> Policy:
        """Return a policy with the weights after `update` updates. Do not train it."""
        if self._ranks.size > 1 or (self.policy is not None and self.policy.update == update):
            return self.at(update)
        if self._frozen is None:
            self._frozen = self._loaded(trained=self.policy is None)
            if self.policy is not None:  # in bf16, the frozen one has no weights to try it with
                self._frozen.can_share_prompts = shares_prompts(self.policy)
        if self._frozen.update != update:
            self._frozen.load_weights(self.path(update), update)
        return self._frozen


def weights_at(folder: RunDir, model: ModelOptions, update: int, ranks: Ranks = ALONE) -> str:
    """Return the model directory (or hub id) of the weights after `update` updates.

    Raises UsageError if the run has not reached this update yet, RunStopped if its checkpoint is
    gone or damaged.
    """
    if update == 0:
        return model_path(model)
    if folder.pending and folder.pending.update == update:
        folder.settle()
    checkpoint, saved = folder.checkpoint(update), folder.checkpoint_updates()
    if update > max(saved, default=0):
        raise UsageError(
            f"{checkpoint} does not exist yet: optimize the earlier stages first (`mugrpo train` "
            "does all of it)"
        )
    if update not in saved:
        raise RunStopped(
            f"{checkpoint} is needed, but gone; remove the later checkpoints, and the run "
            "continues from an earlier one"
        )
    faults = ranks.all(sealed_folder_fault(checkpoint, ranks.rank, ranks.size))
    if fault := next(filter(None, faults), None):
        raise RunStopped(f"{checkpoint} {fault}; `mugrpo repair {folder.root}` sets it aside")
    return str(checkpoint)


def hand_over(folder: RunDir, config: RunConfig, policy: Policy | None, update: int) -> str:
    """Return a model directory (or hub id) that holds only the weights after `update` updates.

    An engine may read every weights file in a folder, and a checkpoint also holds the optimizer's
    state. So the files of its model are linked into a folder of their own, even while the rest of
    the checkpoint is still being written. If ranks have written a folder for engines, it is that.
    The weights of `policy` are written if no checkpoint has them, or if engines get rounded ones.
    """
    if update == 0:
        return model_path(config.model)
    if folder.handover and folder.handover.update == update:
        return str(folder.handover.folder.absolute())
    target = folder.handover_folder(update)
    shutil.rmtree(target.parent, ignore_errors=True)  # weights of other updates
    pending = folder.pending is not None and folder.pending.update == update
    saved = pending or update in folder.checkpoint_updates()
    dtype = handover_dtype(config)
    with without_fsync(), publish_folder(target) as unfinished:
        if policy is not None and (dtype is not None or not saved):
            policy.save(unfinished, dtype=dtype)
        elif not _link_pending(folder, update, unfinished):
            path = Path(weights_at(folder, config.model, update))
            _link_model(path, unfinished, _link_softly)
    return str(target.absolute())


def pin_policy(folder: RunDir, config: RunConfig, update: int, stage: int) -> None:
    """Compare the weights that a stage is generated with to those that its first part has named.

    The first part names them. Without parts nobody does: to know them, the run would have to wait
    until its checkpoint is written. Raises RunStopped if they are others, or if the checkpoint is
    gone.
    """
    record = folder.policy(stage)
    if not folder.apart and not record.exists():
        return
    found = {"update": update, "sha256_of_weights": _fingerprint(folder, config, update)}
    publish_once(record, with_checksum(found))
    if read_checked(record) != found:
        raise RunStopped(
            f"{record} names other weights after update {update} than this run has now, and parts "
            f"of the stage were generated with those; restore that checkpoint, or move "
            f"{record.parent} away to generate the stage again"
        )


def _fingerprint(folder: RunDir, config: RunConfig, update: int) -> str:
    """Return a hash of the weights after `update` updates. See `weights_at` for what it raises."""
    if update == 0:
        return model_fingerprint(config.model)
    if update not in folder.checkpoint_updates():
        weights_at(folder, config.model, update)  # waits for it, or raises
    sums = json.loads((folder.checkpoint(update) / SUMS).read_text())
    model = [f"{name} {sums[name]}" for name in sorted(sums) if not name.startswith(_NOT_THE_MODEL)]
    return hashlib.sha256("\n".join(model).encode()).hexdigest()


def handover_dtype(config: RunConfig) -> torch.dtype | None:
    """Return the type that engines' weights are rounded to, None if they get those of a checkpoint.

    A vLLM process computes in the model's precision, so in bf16 it needs half the bytes.
    """
    rounded = config.engine.name == "vllm" and precision_of(config.model) == "bf16"
    return torch.bfloat16 if rounded else None


def _link_pending(folder: RunDir, update: int, target: Path) -> bool:
    """Link the model's files of the pending checkpoint into `target`, if it is of this update.

    Return False if it is not, if it is published meanwhile, or if the disk has no hard links.
    """
    pending = folder.pending
    if pending is None or pending.update != update:
        return False
    pending.ready()
    try:
        _link_model(pending.folder, target, os.link)
    except OSError:
        for file in target.iterdir():
            file.unlink()
        return False
    return True


def _link_model(checkpoint: Path, folder: Path, link: Callable[[Path, Path], None]) -> None:
    """Link the model's files of `checkpoint` into `folder`, and no others."""
    for file in checkpoint.iterdir():
        if not file.name.startswith(_NOT_THE_MODEL):
            link(file.absolute(), folder / file.name)


def _link_softly(source: Path, link: Path) -> None:
    """Make a link that still leads to `source` if the run is moved."""
    os.symlink(os.path.relpath(source, link.parent), link)
