"""What a GRPOTrainer is given, in forms that a run reads: data, model, adapter, rewards."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_file
from mugrpo.model.adapter import imported_peft
from mugrpo.model.files import save_model
from mugrpo.model.hardware import device_of
from mugrpo.model.loading import load_model, tokenizer_at
from mugrpo.model.pretrained import model_path
from mugrpo.model.quantized import quantization_of
from mugrpo.trl.config import plain

ROW = "mugrpo_row"  # the column with a row's number: TRL trains on equal rows, too
_LORA = ("r", "lora_alpha", "target_modules", "lora_dropout", "task_type")


def read(rows: Iterable[Any], limit: int | None) -> list[dict[str, Any]]:
    """Return the rows of a dataset, at most `limit`. Raises UsageError if one is not usable."""
    if isinstance(rows, dict):
        raise UsageError("a dataset must be one dataset, not a dict of several; name one of them")
    found: list[dict[str, Any]] = []
    for number, row in enumerate(islice(rows, limit)):
        if not isinstance(row, dict) or "prompt" not in row:
            raise UsageError(f"row {number} of the dataset has no 'prompt'")
        found.append(dict(row))
    if not found:
        raise UsageError("the dataset has no rows")
    return found


def is_chat(rows: Iterable[dict[str, Any]]) -> bool:
    """Return whether the prompts are conversations. Raises UsageError if only some are."""
    forms = {not isinstance(row["prompt"], str) for row in rows}
    if len(forms) > 1:
        raise UsageError("some prompts are conversations and some are text; use one form")
    return forms.pop()


def write(rows: Iterable[dict[str, Any]], file: Path) -> None:
    """Write rows as JSONL, with a row's number. Raises UsageError for what JSON cannot express."""
    with publish_file(file) as out:
        for number, row in enumerate(rows):
            for column, value in row.items():
                try:
                    json.dumps(value)
                except (TypeError, ValueError) as error:
                    raise UsageError(
                        f"column {column!r} of row {number} cannot be stored ({error}); leave it "
                        "out, or make it text"
                    ) from None
            out.write(json.dumps({ROW: number, **row}).encode() + b"\n")


def model_options(model: Any, processing_class: Any, folder: Path) -> dict[str, Any]:
    """Return the model's path and, in `folder`, what of model and tokenizer is only in memory.

    A loaded model is saved with its tokenizer. Of a tokenizer beside a path, only the chat template
    and the end-of-sequence token may be the script's own; otherwise UsageError is raised.
    """
    tokenizer = processing_class
    if not isinstance(model, str | Path):
        if not hasattr(model, "save_pretrained"):
            raise UsageError(f"model is {model!r}; give a path, a hub id or a loaded model")
        if hasattr(model, "peft_config"):
            raise UsageError("give the plain model, and peft_config; a PeftModel cannot be trained")
        if tokenizer is None:
            name = model.config._name_or_path
            tokenizer = tokenizer_at(name)
        save_model(model, folder / "model")
        tokenizer.save_pretrained(folder / "model")
        return {"path": str(folder / "model")}
    found: dict[str, Any] = {"path": str(model)}
    if tokenizer is None:
        return found
    own = tokenizer_at(str(model))
    if tokenizer.get_vocab() != own.get_vocab():
        raise UsageError(
            f"processing_class has another vocabulary than the tokenizer of {model}; save it into "
            "the model's directory, or give the loaded model"
        )
    if tokenizer.eos_token != own.eos_token:
        found["eos_token"] = tokenizer.eos_token
    if tokenizer.chat_template and tokenizer.chat_template != own.chat_template:
        found["chat_template"] = str(folder / "chat_template.jinja")
        with publish_file(folder / "chat_template.jinja") as out:
            out.write(tokenizer.chat_template.encode())
    return found


def lora_options(config: Any, model: str) -> dict[str, Any]:
    """Return `[lora]` for peft's LoraConfig. Raises UsageError for what is not known here."""
    if type(config).__name__ != "LoraConfig":
        raise UsageError(f"peft_config is a {type(config).__name__}; only LoraConfig is known here")
    usual = type(config)()
    if config.lora_alpha != int(config.lora_alpha):
        raise UsageError(f"peft_config: lora_alpha = {config.lora_alpha} must be an integer here")
    if plain(config.task_type) not in (None, "CAUSAL_LM"):
        raise UsageError(f"peft_config: task_type = {plain(config.task_type)!r}; use 'CAUSAL_LM'")
    for name, value in vars(config).items():
        if name not in _LORA and value != getattr(usual, name, None):
            raise UsageError(f"peft_config: {name} = {value!r} is not known here; leave it out")
    targets = config.target_modules
    if targets is None:
        from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL

        targets = USUAL.get(AutoConfig.from_pretrained(model).model_type)
    if targets is None or (isinstance(targets, str) and targets != "all-linear"):
        raise UsageError(f"peft_config: target_modules = {targets!r}; name layers, or 'all-linear'")
    return {
        "rank": config.r,
        "alpha": int(config.lora_alpha),
        "targets": targets if isinstance(targets, str) else sorted(targets),
        "dropout": float(config.lora_dropout),
    }


def trained_model(folder: Path, config: RunConfig) -> Any:
    """Return the model in `folder`, or the run's model with the adapter that is in `folder`."""
    if not config.lora.rank:
        return load_model(folder)
    path, device = model_path(config.model), device_of(config.model)
    base = load_model(path, quantization_of(config.lora, config.model.precision, device))
    return imported_peft().PeftModel.from_pretrained(base, folder)


def named_function(function: Callable[..., Any]) -> str | None:
    """Return where a worker can import `function` from, or None if that cannot be known.

    A script is never imported: that would run it.
    """
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = getattr(getattr(module, "__spec__", None), "origin", None) or ""
    if not file.endswith(".py") or getattr(module, name, None) is not function:
        return None
    if module is None or module.__name__ == "__main__":
        return None
    if "site-packages" in Path(file).parts:
        return f"{module.__name__}:{name}"
    return None if "." in module.__name__ else f"{file}:{name}"


def reward_tables(
    functions: list[Any], weights: list[float] | None, *, environment: bool = False
) -> tuple[list[dict[str, Any]], dict[str, Callable[..., Any]]]:
    """Return `task.rewards`, and by name the functions that only this process has.

    With `environment`, its own reward is one of them, of weight 1. The name of a function that only
    this process has contains a hash of its source, so a resumed run notices a change. Raises
    UsageError if one of `functions` is not callable, or if the weights are not as many.
    """
    if not functions and not environment:
        raise UsageError("reward_funcs is empty; give at least one function")
    if weights is not None and len(weights) != len(functions):
        raise UsageError(f"{len(weights)} reward_weights for {len(functions)} reward_funcs")
    tables: list[dict[str, Any]] = []
    held: dict[str, Callable[..., Any]] = {}
    labels = {"answer", "environment"}  # what two parts of a score cannot share
    for number, function in enumerate(functions):
        if not callable(function) or hasattr(function, "forward"):
            raise UsageError(
                f"reward_funcs: {function!r} is not a function; call a reward model in a function "
                "of your own"
            )
        place = named_function(function)
        label = place.rpartition(":")[2] if place else _label(function)
        if label in labels:
            place, label = None, f"{label}_{number + 1}"
        labels.add(label)
        if place is None:
            place = f"<{_origin(function)}>:{label}"
            held[place] = function
        weight = {} if weights is None else {"weight": float(weights[number])}
        tables.append({"function": place, **weight})
    return tables + [{"name": "environment"}] * environment, held


def _label(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return str(name) if name.isidentifier() else "reward"


def _origin(function: Any) -> str:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return "script"
    return f"script {hashlib.sha256(source.encode()).hexdigest()[:12]}"
