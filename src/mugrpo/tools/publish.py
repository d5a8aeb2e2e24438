"""`mugrpo publish`: the model or adapter of a checkpoint, with a card, on the Hugging Face Hub.

Only what loads as a model is sent: no optimizer state, no metrics, and no other file of the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

from mugrpo.config.load import build_config
from mugrpo.config.mixture import MixtureOptions
from mugrpo.config.preset import described
from mugrpo.config.run import NAMED_MODELS, RunConfig
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.metrics import read_metrics
from mugrpo.disk.publishing import SUMS, sealed_folder_fault
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.adapter import CONFIG
from mugrpo.run.weights import NOT_THE_MODEL
from mugrpo.tasks.rows import is_local

# The library's client is httpx, or a successor of it under another name.
_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
_VERSIONS = ("mugrpo", "torch", "transformers", "peft")


def publish(
    run: RunDir,
    name: str,
    *,
    update: int | None = None,
    base: str | None = None,
    license: str | None = None,
    public: bool = False,
) -> str:
    """Send the model after `update` (the newest) to OWNER/NAME in one commit; return its URL.

    `base` is the hub id of the model before the first update, by default `model.path` if that is
    one. Raises UsageError if there is no such checkpoint, if the repository is public and `public`
    is false, or if the Hub refuses; RunStopped if the checkpoint is damaged.
    """
    stored, updates = run.read_config(), run.checkpoint_updates()
    if stored is None or not updates:
        raise UsageError(f"{run.root} is no run with a checkpoint; name the directory of one")
    config = build_config(stored["config"] | run.read_private(), str(run.config))
    update = max(updates) if update is None else update
    if update not in updates:
        raise UsageError(f"--update {update} has no checkpoint; choose one of {updates}")
    checkpoint = run.checkpoint(update)
    if fault := sealed_folder_fault(checkpoint):
        raise RunStopped(f"{checkpoint} {fault}; `mugrpo repair {run.root}` sets it aside")
    if base is None and config.model.path not in NAMED_MODELS and not _is_path(config.model.path):
        base = config.model.path
    try:
        with TemporaryDirectory(prefix="mugrpo-publish-") as folder:
            _link_model(checkpoint, Path(folder), base)
            _card(run, config, stored, update, name, base, license).save(f"{folder}/README.md")
            api = HfApi()
            api.create_repo(name, private=not public, exist_ok=True)
            if not public and not api.model_info(name).private:
                raise UsageError(f"{name} is public; add --public, or choose another name")
            title = f"Model after update {update}"
            return str(api.upload_folder(repo_id=name, folder_path=folder, commit_message=title))
    except (_HTTP_ERROR, HFValidationError, LocalTokenNotFoundError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"nothing is published: {reason}; is `hf auth login` done?") from None


def _link_model(checkpoint: Path, folder: Path, base: str | None) -> None:
    """Link the model's files, those that the seal lists, into `folder`."""
    for name in json.loads((checkpoint / SUMS).read_bytes()):
        if not name.startswith(NOT_THE_MODEL):
            link = folder / name
            link.parent.mkdir(parents=True, exist_ok=True)
            os.symlink((checkpoint / name).absolute(), link)
    if (adapter := folder / CONFIG).exists():  # peft stores where the model was on this machine
        text = json.loads(adapter.read_bytes()) | {"base_model_name_or_path": base}
        adapter.unlink()
        adapter.write_text(json.dumps(text, indent=2))


def _card(
    run: RunDir,
    config: RunConfig,
    stored: dict[str, Any],
    update: int,
    name: str,
    base: str | None,
    license: str | None,
) -> ModelCard:
    """Return the card: what the run has stored of itself, and nothing else."""
    adapter, task = bool(config.lora.rank), config.task
    hub_data = isinstance(task, DatasetOptions) and not _is_path(task.data)
    data = ModelCardData(
        base_model=base,
        datasets=[task.data] if isinstance(task, DatasetOptions) and hub_data else None,
        library_name="peft" if adapter else "transformers",
        license=license,
        pipeline_tag="text-generation",
        tags=["mugrpo", "reinforcement-learning", config.preset],
    )
    schedule, versions = config.schedule, stored["provenance"]
    parts = [
        f"# {name.partition('/')[2]}",
        f"{'A LoRA adapter for' if adapter else 'Trained from'} `{base or _named(config)}`, by "
        "reinforcement learning with verifiable rewards, with mugrpo. These are the weights after "
        f"update {update:,} of {schedule.total_updates:,}.",
        "## How to use it",
        _usage(name, adapter, base),
        "## Accuracy on held-out problems",
        *_numbers(run, update),
        "## Method",
        f"`{config.preset}`: {described(config.preset)} Objective: `{config.objective.name}`.",
        f"{schedule.stages:,} stages; an update has {schedule.problems_per_update:,} problems x "
        f"{schedule.group_size:,} responses; learning rate {config.optimizer.lr:g}.",
        "## Data",
        "\n".join(_sources(config)),
        ", ".join(f"{key} {versions[key]}" for key in _VERSIONS if versions.get(key)),
    ]
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n")


def _usage(name: str, adapter: bool, base: str | None) -> str:
    load = "AutoModelForCausalLM.from_pretrained"
    lines = ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    if adapter:
        lines.insert(0, "from peft import PeftModel")
        lines.append(f'base = {load}("{base or "PATH/OF/THE/BASE/MODEL"}")')
        lines.append(f'model = PeftModel.from_pretrained(base, "{name}")')
    else:
        lines.append(f'model = {load}("{name}")')
    lines.append(f'tokenizer = AutoTokenizer.from_pretrained("{name}")')
    return "```python\n" + "\n".join(lines) + "\n```"


def _numbers(run: RunDir, update: int) -> Iterator[str]:
    """Yield a table of the accuracies before and after, or that none was measured."""
    rows = [
        f"| {line['update']:,} | {line['accuracy']:.3f} | {line['accuracy_low']:.3f} to "
        f"{line['accuracy_high']:.3f} | {line['problems']:,} | {line['temperature']:g} |"
        for line in read_metrics(run.metrics)
        if line["kind"] == "evaluation" and line["update"] in (0, update)
    ]
    head = "| after update | accuracy | 95 % interval | problems | temperature |\n" + "| --- " * 5
    yield "\n".join([f"{head}|", *rows]) if rows else "Not measured."


def _sources(config: RunConfig) -> Iterator[str]:
    """Yield a line for each source of problems."""
    task = config.task
    for source in task.sources if isinstance(task, MixtureOptions) else (task,):
        data = getattr(source, "data", None)
        where = "" if data is None else f", {Path(data).name if _is_path(data) else data}"
        rewards = ", ".join(f"`{reward.label}`" for reward in getattr(source, "rewards", ()))
        yield f"- `{source.name}`{where}" + (f"; rewards {rewards}" if rewards else "")


def _is_path(name: str) -> bool:
    return Path(name).is_absolute() or is_local(name)


def _named(config: RunConfig) -> str:
    """Return the last part of the model's place: its folders are nobody else's business."""
    return Path(config.model.path).name
