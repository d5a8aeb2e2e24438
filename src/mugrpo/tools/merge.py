"""A model with an adapter merged into its weights: a plain model directory."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoTokenizer

from mugrpo.config.lora import LoRAOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_folder, sealed_folder_fault
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.adapter import CONFIG, Adapter
from mugrpo.model.loading import load_model


def merge(source: Path, target: Path, base: str | None = None) -> Path:
    """Write the model of `source` to `target`, in fp32, with its adapter in its weights.

    `source` is a checkpoint, or a run, whose newest checkpoint is taken. `base` is the model that
    the adapter belongs to, by default the one that it was trained on. Returns `target`. Raises
    UsageError if there is no such checkpoint, if it is damaged or has no adapter, if the model
    cannot be loaded, or if `target` exists.
    """
    run = RunDir(source)
    checkpoint = run.checkpoint(run.newest_update()) if run.config.exists() else source
    if target.exists():
        raise UsageError(f"{target} exists already; name a new directory")
    if not checkpoint.is_dir():
        raise UsageError(f"{source} is neither a checkpoint nor a run that has one")
    if fault := sealed_folder_fault(checkpoint):
        raise UsageError(f"{checkpoint} {fault}; use another checkpoint")
    if not (checkpoint / CONFIG).exists():
        raise UsageError(f"{checkpoint} has no adapter: it is a model directory itself")
    config = json.loads((checkpoint / CONFIG).read_text())
    model = load_model(base := base or config["base_model_name_or_path"])
    targets = tuple(config["target_modules"])
    options = LoRAOptions(rank=config["r"], alpha=config["lora_alpha"], targets=targets)
    adapter = Adapter(model, options, base, seed=0)
    adapter.load(checkpoint)
    adapter.merge()
    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint), trust_remote_code=False)
    with publish_folder(target) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return target
