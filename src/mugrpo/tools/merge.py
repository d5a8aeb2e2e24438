"""A model with an adapter merged into its weights: a plain model directory."""

import json
import shutil
from pathlib import Path

from transformers import GenerationConfig

from mugrpo.config.load import build_config
from mugrpo.config.training import LoRAOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_folder, sealed_folder_fault
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.adapter import CONFIG, merged, read_config
from mugrpo.model.files import save_model
from mugrpo.model.loading import load_model, processor_files, tokenizer_at
from mugrpo.model.pretrained import model_fingerprint, model_path


def merge(
    source: Path,
    target: Path,
    base: str | None = None,
    *,
    force: bool = False,
) -> Path:
    """Write the model of `source` to `target`, in fp32, with its adapter in its weights.

    `source` is a checkpoint, or a run, whose newest checkpoint is taken. `base` is the model that
    the adapter belongs to, by default where it was during training; `force` accepts one with other
    files. Returns `target`.
    Raises UsageError if there is no such checkpoint, if it is damaged or has no adapter, if the
    model cannot be loaded or is not the one that was trained on, or if `target` exists.
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
    named = base or read_config(checkpoint).get("base_model_name_or_path")
    options = build_config({"model": {"path": named}}, str(checkpoint / CONFIG)).model
    path = model_path(options)
    stages = json.loads((checkpoint / "stages.json").read_text())
    trained_on = str(stages["config"]["provenance"]["model_sha256"])
    copied = "/" in trained_on and Path(path).is_dir()  # of a hub id, which has no hash
    if not (force or copied or model_fingerprint(options) == trained_on):
        raise UsageError(
            f"{path} is not the model that {checkpoint} was trained on, or one of its files has "
            "changed since; name that model, as it was, with --base, or merge anyway with --force "
            "if its weights are the same"
        )
    lora = LoRAOptions.model_validate(stages["config"]["config"]["lora"])
    model = merged(load_model(path), checkpoint, lora)
    model.generation_config = GenerationConfig.from_pretrained(checkpoint)
    tokenizer = tokenizer_at(str(checkpoint))
    with publish_folder(target, replace=False) as folder:
        save_model(model, folder)
        tokenizer.save_pretrained(folder)
        for file in processor_files(str(checkpoint)):
            shutil.copyfile(file, folder / file.name)
    return target
